"""CORAL against covariance matrices."""

from collections.abc import Callable
from itertools import combinations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.methods import Batch
from mecam.methods.coral import CORAL
from mecam.models.network import Network


def expected(network: Network, batch: Batch, gamma: float) -> Tensor:
    z = network.features(batch.images)
    parts = z.chunk(batch.domains)
    losses = [F.cross_entropy(network.head(x), y) for x, (_, y) in zip(parts, batch.by_domain(), strict=True)]
    pairs = [
        ((a.mean(0) - b.mean(0)) ** 2).mean() + ((torch.cov(a.T) - torch.cov(b.T)) ** 2).mean()
        for a, b in combinations(parts, 2)
    ]
    return torch.stack(losses).mean() + gamma * torch.stack(pairs).mean()


@pytest.mark.parametrize(("domains", "each"), [(2, 2), (3, 6), (4, 9)])
def test_loss_and_gradient_equal_those_of_covariance_matrices(
    network: Network, make_batch: Callable[..., Batch], domains: int, each: int
) -> None:
    batch = make_batch(domains=domains, each=each)
    loss, state = CORAL(gamma=50.0).loss(network, batch, None, None)
    other = expected(network, batch, 50.0)
    torch.testing.assert_close(loss, other, rtol=1e-10, atol=0)
    weights = list(network.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(loss, weights), torch.autograd.grad(other, weights), rtol=1e-10, atol=1e-12
    )
    assert state is None


def test_identical_domains_have_no_penalty(network: Network, make_batch: Callable[..., Batch]) -> None:
    one = make_batch(domains=1)
    same = Batch(one.images.repeat(3, 1, 1, 1), one.labels.repeat(3), 3)
    plain, _ = CORAL(gamma=0.0).loss(network, same, None, None)
    loss, _ = CORAL(gamma=1.0).loss(network, same, None, None)
    assert abs(loss - plain) < 1e-14


def test_the_order_of_domains_does_not_matter(network: Network, batch: Batch) -> None:
    order = torch.arange(18).view(3, 6)[[2, 0, 1]].flatten()
    turned = Batch(batch.images[order], batch.labels[order], 3)
    loss, other = (CORAL().loss(network, b, None, None)[0] for b in (batch, turned))
    torch.testing.assert_close(loss, other, rtol=1e-10, atol=0)


def test_the_penalty_is_the_featurizers_alone(network: Network, batch: Batch) -> None:
    def gradients(gamma: float) -> tuple[Tensor, ...]:
        network.zero_grad()
        CORAL(gamma=gamma).gradient(network, batch, None, None)
        conv = network.get_parameter("featurizer.stem.0.weight")
        assert conv.grad is not None
        assert network.head.weight.grad is not None
        return conv.grad, network.head.weight.grad

    (conv, head), (plain_conv, plain_head) = gradients(50.0), gradients(0.0)
    assert torch.equal(head, plain_head)
    assert not torch.allclose(conv, plain_conv)
