"""IB-ERM and IB-IRM against variances written out."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.methods import Batch, Setting
from mecam.methods.iberm import IBERM
from mecam.methods.ibirm import IBIRM
from mecam.methods.irm import IRM
from mecam.models.network import Network
from tests.methods.gradients import assert_same_gradient


def bottleneck(network: Network, batch: Batch) -> Tensor:
    variances = []
    for part in network.features(batch.images).chunk(batch.domains):
        mean = sum(part) / len(part)
        variances += [sum((z - mean) ** 2 for z in part) / (len(part) - 1)]
    return torch.stack(variances).mean()


@pytest.mark.parametrize(("step", "weight"), [(119, 0.0), (120, 8.0)])
def test_loss_and_gradient(
    network: Network, make_batch: Callable[..., Batch], setting: Setting, step: int, weight: float
) -> None:
    batch, method = make_batch(step=step), IBERM(lam=8.0, anneal=120)
    method.build(network, setting)
    loss, _ = method.loss(network, batch, None, None)
    classified = F.cross_entropy(network(batch.images), batch.labels)
    assert_same_gradient(network, loss, classified + weight * bottleneck(network, batch))


@pytest.mark.parametrize(("step", "weight"), [(119, 0.0), (120, 8.0)])
def test_ibirm_adds_the_bottleneck_to_irm(
    network: Network, make_batch: Callable[..., Batch], setting: Setting, step: int, weight: float
) -> None:
    batch, method, irm = (
        make_batch(step=step),
        IBIRM(lam=3.0, anneal=50, ib_lam=8.0, ib_anneal=120),
        IRM(lam=3.0, anneal=50),
    )
    method.build(network, setting), irm.build(network, setting)
    loss, _ = method.loss(network, batch, None, None)
    invariant, _ = irm.loss(network, batch, None, None)
    assert_same_gradient(network, loss, invariant + weight * bottleneck(network, batch))
    assert [step for step in range(200) if method.restarts(step)] == [50, 120]
