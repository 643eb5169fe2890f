import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.methods._pair import Pair
from mecam.methods.base import Batch, Setting
from mecam.methods.mdsdi import MDSDI
from mecam.models.network import Network
from mecam.models.registry import create
from mecam.virtual import MixStyle

close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)


def built(network: Network, setting: Setting, *, covariance: int = 0) -> tuple[MDSDI, Pair]:
    method = MDSDI(covariance=covariance)
    assert method.build(network, setting) is network
    assert isinstance(network.featurizer, Pair)
    with torch.no_grad():  # apart from each other, as they are after a step
        for parameter in network.featurizer.specific.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return method, network.featurizer


def penalty_by_hand(a: Tensor, b: Tensor) -> Tensor:
    a, b = a - a.mean(0), b - b.mean(0)
    return torch.einsum("ni,nj->nij", a, b).square().mean()


def objective_by_hand(method: MDSDI, network: Network, pair: Pair, batch: Batch) -> Tensor:
    zi, zs = pair.invariant(batch.images), pair.specific(batch.images)
    domain = torch.arange(batch.domains).repeat_interleave(len(zi) // batch.domains)
    discriminator = copy.deepcopy(method.discriminator.module)
    return (
        F.cross_entropy(network.head(torch.cat([zi, zs], 1)), batch.labels)
        - F.cross_entropy(discriminator(zi), domain)
        + F.cross_entropy(network.get_submodule("domain_head")(zs), domain)
        + penalty_by_hand(zi, zs)
    )


def test_objective_equals_the_formula(network: Network, batch: Batch, setting: Setting) -> None:
    method, pair = built(network, setting)
    loss, _ = method.loss(network, batch, None, None)
    close(loss, objective_by_hand(method, network, pair, batch))


@pytest.mark.parametrize(("domains", "each", "weight_decay"), [(3, 6, 0.0), (2, 1, 0.3)])
def test_gradient_is_the_objectives_and_the_meta_steps(
    network: Network, make_batch: Callable[..., Batch], domains: int, each: int, weight_decay: float
) -> None:
    """The meta step with copies of the network and a real Adam, each held-out domain on its own."""
    method, pair = built(network, Setting(classes=3, domains=domains, steps=10, lr=0.01, weight_decay=weight_decay))
    network.eval()  # batch norm with fixed statistics, so that copies see each domain as the whole batch does
    batch = make_batch(domains=domains, each=each)
    value, _ = method.gradient(network, batch, None, None)
    objective = objective_by_hand(method, network, pair, batch)
    close(value, objective.detach())
    names = [name for name, _ in network.named_parameters()]
    expected = dict(zip(names, torch.autograd.grad(objective, list(network.parameters())), strict=True))
    parts = batch.by_domain()
    for held_out in range(domains):
        clone = copy.deepcopy(network)
        clone.zero_grad()
        psi = {n: p for n, p in clone.named_parameters() if n.startswith(("featurizer.specific", "head"))}
        adam = torch.optim.Adam(psi.values(), lr=0.01, weight_decay=weight_decay)
        rest = [part for d, part in enumerate(parts) if d != held_out]
        images, labels = (torch.cat(of) for of in zip(*rest, strict=True))
        for part in ((images, labels), parts[held_out]):
            adam.zero_grad()
            F.cross_entropy(clone(part[0]), part[1]).backward()  # type: ignore[no-untyped-call]
            for name, parameter in psi.items():
                assert parameter.grad is not None
                expected[name] = expected[name] + parameter.grad / domains
            adam.step()
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-8, atol=1e-11, msg=name)


def test_statistics_of_batch_norm_follow_one_plain_pass(network: Network, batch: Batch, setting: Setting) -> None:
    method, _ = built(network, setting)
    other = copy.deepcopy(network)
    method.gradient(network, batch, None, None)
    other(batch.images)
    for one, plain in zip(network.buffers(), other.buffers(), strict=True):
        assert torch.equal(one, plain)
    assert all(p.grad is not None for p in network.parameters())
    assert all(p.grad is None for p in method.discriminator.module.parameters())


def test_the_discriminator_learns_from_the_invariant_features(network: Network, batch: Batch, setting: Setting) -> None:
    method, pair = built(network, setting)
    before = copy.deepcopy(method.discriminator.module)
    _, state = method.gradient(network, batch, None, None)
    assert method.after(network, batch, None, state) is None  # type: ignore[func-returns-value]
    loss = F.cross_entropy(before(pair.invariant(batch.images).detach()), batch.domain_labels())
    slopes = torch.autograd.grad(loss, list(before.parameters()))
    for old, new, g in zip(before.parameters(), method.discriminator.module.parameters(), slopes, strict=True):
        torch.testing.assert_close(new, old - 0.01 * g / (g.abs() + 1e-8), rtol=1e-7, atol=1e-9)


def test_the_proper_covariance_is_a_frobenius_norm() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(7, d, generator=generator, dtype=torch.float64) for d in (4, 5))
    covariance = torch.cov(torch.cat([a, b], 1).T)[:4, 4:]
    close(MDSDI(covariance=1).penalty(a, b), covariance.square().sum())
    assert MDSDI(covariance=1).penalty(a, torch.ones(7, 5, dtype=torch.float64)) == 0
    assert MDSDI().penalty(a, torch.ones(7, 5, dtype=torch.float64)) == 0


def test_the_second_featurizer_starts_as_the_first_and_shares_nothing(network: Network, setting: Setting) -> None:
    MDSDI().build(network, setting)
    pair = network.featurizer
    assert isinstance(pair, Pair)
    for one, other in zip(pair.invariant.parameters(), pair.specific.parameters(), strict=True):
        assert torch.equal(one, other)
        assert one is not other


def test_virtual_domains_act_on_both_featurizers(network: Network, batch: Batch, setting: Setting) -> None:
    built(network, setting)
    style = MixStyle(p=1.0).attach(network, network.stages)
    plain = network.features(batch.images).chunk(2, 1)
    with style.active():
        mixed = network.features(batch.images).chunk(2, 1)
    assert not torch.allclose(plain[0], mixed[0])
    assert not torch.allclose(plain[1], mixed[1])


def test_frozen_batch_norm_is_frozen_in_both(setting: Setting) -> None:
    network = create("resnet8", classes=3, freeze_bn=True)
    MDSDI().build(network, setting)
    network.train()
    assert not any(m.training for m in network.modules() if isinstance(m, torch.nn.BatchNorm2d))
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 3)
