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
from tests.methods.gradients import assert_same_gradient


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
    assert_same_gradient(network, loss, other)
    assert state is None
