"""MMD against a kernel computed pair by pair."""

import math
from collections.abc import Callable
from itertools import combinations

import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.methods import Batch
from mecam.methods.mmd import MMD, kernel
from mecam.models.network import Network
from tests.methods.gradients import assert_same_gradient


def mean_kernel(xs: Tensor, ys: Tensor) -> Tensor:
    values = [torch.exp(-(10.0**power) * ((x - y) ** 2).sum()) for x in xs for y in ys for power in range(-3, 4)]
    return torch.stack(values).sum() / (len(xs) * len(ys))


def expected(network: Network, batch: Batch, gamma: float) -> Tensor:
    z = network.features(batch.images)
    parts = z.chunk(batch.domains)
    losses = [F.cross_entropy(network.head(x), y) for x, (_, y) in zip(parts, batch.by_domain(), strict=True)]
    squares = [mean_kernel(a, a) + mean_kernel(b, b) - 2 * mean_kernel(a, b) for a, b in combinations(parts, 2)]
    return torch.stack(losses).mean() + gamma * torch.stack(squares).mean()


def test_loss_and_gradient_equal_loops_over_pairs_of_images(network: Network, batch: Batch) -> None:
    loss, state = MMD(gamma=0.7).loss(network, batch, None, None)
    other = expected(network, batch, 0.7)
    assert_same_gradient(network, loss, other)
    assert state is None


def test_one_image_a_domain(network: Network, make_batch: Callable[..., Batch]) -> None:
    batch = make_batch(each=1, domains=2)
    loss, _ = MMD(gamma=3.0).loss(network, batch, None, None)
    torch.testing.assert_close(loss, expected(network, batch, 3.0), rtol=1e-10, atol=0)


def test_in_single_precision_large_features_are_no_distance_from_themselves() -> None:
    z = 30 + torch.rand(8, 2048, generator=torch.Generator().manual_seed(0))
    z.requires_grad_()
    k = kernel(z)
    assert torch.equal(k.diagonal(), torch.full((8,), 7.0))
    k.diagonal().sum().backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    assert not z.grad.any()
    distance = (z[0].detach().double() - z[1].detach().double()).square().sum().item()
    values = sum(math.exp(-(10.0**power) * distance) for power in range(-3, 4))
    assert math.isclose(k[0, 1].item(), values, rel_tol=1e-2)
