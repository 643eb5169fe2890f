import copy
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.methods.base import Batch, Setting
from mecam.methods.dann import DANN
from mecam.models.network import Network
from tests.methods.gradients import assert_same_gradient

close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)


def by_hand(network: Network, discriminator: nn.Module, batch: Batch, lam: float, gp: float) -> Tensor:
    """CE − λ D, one image after the other, the input gradients by functional autograd."""
    z = network.featurizer(batch.images)
    classified = torch.stack([F.cross_entropy(network.head(z[i]), y) for i, y in enumerate(batch.labels)]).mean()
    told, slopes = [], []
    for i, features in enumerate(z):
        domain = torch.tensor(i // (len(z) // batch.domains))

        def of_domain(v: Tensor, domain: Tensor = domain) -> Tensor:
            return F.cross_entropy(discriminator(v), domain)

        told.append(of_domain(features))
        slopes.append(torch.func.grad(of_domain)(features).square().sum())
    return classified - lam * (torch.stack(told).mean() + gp * torch.stack(slopes).mean())


@pytest.mark.parametrize("gp", [0.0, 0.7])
def test_loss_and_its_gradient_equal_the_formula(network: Network, batch: Batch, setting: Setting, gp: float) -> None:
    method = DANN(lam=0.3, gp=gp, width=5)
    method.build(network, setting)
    loss, _ = method.loss(network, batch, None, None)
    expected = by_hand(network, method.discriminator.module, batch, 0.3, gp)
    assert_same_gradient(network, loss, expected, rtol=1e-9)


def test_one_turn_in_1_plus_k_is_the_networks() -> None:
    assert [DANN().declines(step) for step in range(4)] == [False, True, False, True]
    turns = [DANN(k=3).declines(step) for step in range(8)]
    assert turns == [True, True, False, True, True, True, False, True]


@pytest.mark.parametrize("gp", [0.0, 0.7])
def test_the_discriminator_learns_in_its_turns_only(
    network: Network, make_batch: Callable[..., Batch], setting: Setting, gp: float
) -> None:
    method = DANN(gp=gp, width=5)
    method.build(network, setting)
    before = copy.deepcopy(method.discriminator.module)
    method.after(network, make_batch(step=0), None, None)
    assert all(map(torch.equal, before.parameters(), method.discriminator.module.parameters()))
    batch = make_batch(step=1)
    method.after(network, batch, None, None)
    # D is what the main loss subtracts; Adam's first step is lr · g / (|g| + 1e-8)
    loss = -by_hand(network, before, batch, 1.0, gp) + F.cross_entropy(network(batch.images), batch.labels)
    slopes = torch.autograd.grad(loss, list(before.parameters()))
    for old, new, g in zip(before.parameters(), method.discriminator.module.parameters(), slopes, strict=True):
        torch.testing.assert_close(new, old - 0.01 * g / (g.abs() + 1e-8), rtol=1e-7, atol=1e-9)
    assert all(p.grad is None for p in network.parameters())


def test_the_main_loss_leaves_no_gradient_in_the_discriminator(
    network: Network, batch: Batch, setting: Setting
) -> None:
    method = DANN(gp=0.5)
    method.build(network, setting)
    method.gradient(network, batch, None, None)
    assert all(p.grad is not None for p in network.parameters())
    assert all(p.grad is None for p in method.discriminator.module.parameters())


def test_a_discriminator_that_knows_nothing_costs_log_domains(network: Network, batch: Batch, setting: Setting) -> None:
    method = DANN(lam=2.0, gp=1.0)
    method.build(network, setting)
    nn.init.zeros_(method.discriminator.module.get_parameter("6.weight"))
    nn.init.zeros_(method.discriminator.module.get_parameter("6.bias"))
    loss, _ = method.loss(network, batch, None, None)
    expected = F.cross_entropy(network(batch.images), batch.labels) - 2 * math.log(3)
    close(loss, expected)


def test_both_adams_have_the_same_betas(network: Network, setting: Setting) -> None:
    method = DANN(beta1=0.25)
    method.build(network, setting)
    assert method.optimizer_settings == {"betas": (0.25, 0.9)}
    group = method.discriminator.optimizer.param_groups[0]
    assert (group["betas"], group["lr"]) == ((0.25, 0.9), 0.01)


def test_the_discriminator_has_a_rate_and_a_decay_of_its_own(
    network: Network, make_batch: Callable[..., Batch], setting: Setting
) -> None:
    """Two of its steps against torch's Adam."""
    method = DANN(width=5, lr_d=0.02, weight_decay_d=0.3)
    method.build(network, replace(setting, weight_decay=0.7))
    twin = copy.deepcopy(method.discriminator.module)
    adam = torch.optim.Adam(twin.parameters(), lr=0.02, weight_decay=0.3, betas=(0.5, 0.9))
    for step in (1, 3):
        batch = make_batch(seed=step, step=step)
        method.after(network, batch, None, None)
        adam.zero_grad()
        F.cross_entropy(twin(network.featurizer(batch.images).detach()), batch.domain_labels()).backward()  # type: ignore[no-untyped-call]
        adam.step()
    close(dict(method.discriminator.module.named_parameters()), dict(twin.named_parameters()))


def test_width_depth_and_dropout_shape_the_discriminator(network: Network, setting: Setting) -> None:
    method = DANN(width=7, depth=4, dropout=0.5)
    method.build(network, setting)
    modules = list(method.discriminator.module.modules())
    shapes = [(m.in_features, m.out_features) for m in modules if isinstance(m, nn.Linear)]
    assert shapes == [(6, 7), (7, 7), (7, 7), (7, 3)]
    assert [m.p for m in modules if isinstance(m, nn.Dropout)] == [0.5] * 3
