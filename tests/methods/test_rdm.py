"""RDM against the discrepancy written out, kernel by kernel."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.methods import Batch, Setting
from mecam.methods.rdm import RDM
from mecam.models.network import Network
from tests.methods.gradients import assert_same_gradient


def kernel_mean(some: Tensor, other: Tensor) -> Tensor:
    scales = [10.0**power for power in range(-4, 4)]
    return torch.stack([sum(torch.exp(-c * (a - b) ** 2) for c in scales) for a in some for b in other]).mean()


def expected(network: Network, batch: Batch, lam: float, variance: float) -> Tensor:
    risks = [F.cross_entropy(network(batch.images)[i], y) for i, y in enumerate(batch.labels)]
    domains = torch.stack(risks).chunk(batch.domains)
    every, worst = torch.stack(risks), max(domains, key=lambda own: float(own.mean()))
    mmd = kernel_mean(worst, worst) + kernel_mean(every, every) - 2 * kernel_mean(worst, every)
    return every.mean() + lam * mmd + variance * (torch.var(every) + torch.var(worst))


@pytest.mark.parametrize(("step", "on"), [(1499, 0), (1500, 1)])
def test_loss_and_gradient(
    network: Network, make_batch: Callable[..., Batch], setting: Setting, step: int, on: int
) -> None:
    batch, method = make_batch(step=step, each=4), RDM(lam=5.0, variance=0.3)
    method.build(network, setting)
    loss, _ = method.loss(network, batch, None, None)
    assert_same_gradient(network, loss, expected(network, batch, 5.0 * on, 0.3 * on), rtol=1e-8)


def test_the_learning_rate_falls_when_the_penalty_begins(network: Network, setting: Setting) -> None:
    method = RDM(anneal=100)
    method.build(network, setting)
    assert [method.rates(step) for step in (99, 100)] == [[1.0], [0.3]]
    method = RDM(anneal=100, late_lr=0.002)
    method.build(network, setting)
    assert math.isclose(method.rates(100)[0] * setting.lr, 0.002)
