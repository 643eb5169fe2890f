"""Both CausIRL methods against the groups as tensors."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.methods import Batch
from mecam.methods.causirlcoral import CausIRLCORAL
from mecam.methods.causirlmmd import CausIRLMMD
from mecam.models.network import Network
from tests.methods.gradients import assert_same_gradient


def mmd(x: Tensor, y: Tensor) -> Tensor:
    def mean(a: Tensor, b: Tensor) -> Tensor:
        squares = ((a[:, None] - b) ** 2).sum(2)
        return torch.stack([torch.exp(-(10.0**power) * squares) for power in range(-3, 4)]).sum(0).mean()

    return mean(x, x) + mean(y, y) - 2 * mean(x, y)


def coral(x: Tensor, y: Tensor) -> Tensor:
    return ((x.mean(0) - y.mean(0)) ** 2).mean() + ((torch.cov(x.T) - torch.cov(y.T)) ** 2).mean()


@pytest.mark.parametrize(("method", "distance"), [(CausIRLMMD, mmd), (CausIRLCORAL, coral)])
@pytest.mark.parametrize("sizes", [(0, 2, 5), (1, 1, 0), (3, 3, 3)])
def test_loss_and_gradient(
    network: Network,
    batch: Batch,
    method: type[CausIRLMMD],
    distance: Callable[[Tensor, Tensor], Tensor],
    sizes: tuple[int, ...],
) -> None:
    first = torch.cat([(torch.arange(6) < size).double() for size in sizes])
    loss, _ = method(gamma=4.0).loss(network, batch, first, None)
    z = network.features(batch.images)
    expected = F.cross_entropy(network.head(z), batch.labels) + 4.0 * distance(z[first == 1], z[first == 0])
    assert_same_gradient(network, loss, expected, rtol=1e-8)


@pytest.mark.parametrize("method", [CausIRLMMD, CausIRLCORAL])
@pytest.mark.parametrize("images", [0, 1])
def test_a_group_without_two_images_costs_nothing(
    network: Network, batch: Batch, method: type[CausIRLMMD], images: int
) -> None:
    first = (torch.arange(18) < images).double()
    loss, _ = method(gamma=4.0).loss(network, batch, first, None)
    assert_same_gradient(network, loss, F.cross_entropy(network(batch.images), batch.labels))


def test_the_first_images_of_each_domain_are_drawn(make_batch: Callable[..., Batch]) -> None:
    generator, batch = torch.Generator().manual_seed(0), make_batch()
    sizes = set()
    for _ in range(200):
        for group in CausIRLMMD().draw(batch, generator).view(3, 6):
            assert group.tolist() == sorted(group.tolist(), reverse=True)
            sizes.add(int(group.sum()))
    assert sizes == {0, 1, 2, 3, 4, 5}
