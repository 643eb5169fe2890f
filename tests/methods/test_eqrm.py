"""EQRM against scipy's root of the density's distribution function."""

from collections.abc import Callable
from statistics import NormalDist, stdev

import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor
from torch.nn import functional as F

from mecam.methods import Batch, Setting
from mecam.methods.eqrm import EQRM
from mecam.models.network import Network
from tests.methods.gradients import assert_same_gradient


def quantile(risks: list[float], level: float) -> float:
    kernel = NormalDist(0, 1.06 * stdev(risks) * len(risks) ** -0.2)

    def excess(q: float) -> float:
        return sum(kernel.cdf(q - risk) for risk in risks) / len(risks) - level

    return float(brentq(excess, -50, 50, xtol=1e-14, rtol=1e-14))


def risks_of(network: Network, batch: Batch) -> list[Tensor]:
    logits = network(batch.images).chunk(batch.domains)
    return [F.cross_entropy(own, y) for own, y in zip(logits, batch.labels.chunk(batch.domains), strict=True)]


@pytest.mark.parametrize("level", [0.5, 0.75, 0.99])
def test_value_and_slopes_are_those_of_the_quantile(
    network: Network, make_batch: Callable[..., Batch], setting: Setting, level: float
) -> None:
    batch, method = make_batch(step=2500), EQRM(quantile=level)
    method.build(network, setting)
    loss, _ = method.loss(network, batch, None, None)
    risks = risks_of(network, batch)
    values, h = [float(risk) for risk in risks], 1e-5
    torch.testing.assert_close(float(loss), quantile(values, level), rtol=1e-8, atol=0)
    slopes = []
    for i in range(len(values)):
        up, down = ([v + sign * h * (j == i) for j, v in enumerate(values)] for sign in (1, -1))
        slopes.append((quantile(up, level) - quantile(down, level)) / (2 * h))
    expected = sum(slope * risk for slope, risk in zip(slopes, risks, strict=True))
    gradients = [torch.autograd.grad(value, list(network.parameters())) for value in (loss, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-8)


def test_before_the_change_it_is_the_mean(network: Network, batch: Batch, setting: Setting) -> None:
    method = EQRM()
    method.build(network, setting)
    loss, _ = method.loss(network, batch, None, None)
    assert_same_gradient(network, loss, torch.stack(risks_of(network, batch)).mean())
    assert [step for step in range(setting.steps) if method.restarts(step)] == [2500]
    assert [method.rates(step) for step in (2499, 2500)] == [[1.0], [0.02]]


def test_equal_losses_have_a_finite_gradient(
    network: Network, make_batch: Callable[..., Batch], setting: Setting
) -> None:
    one = make_batch(domains=1, step=2500)
    batch = Batch(one.images.repeat(3, 1, 1, 1), one.labels.repeat(3), 3, 2500)
    method = EQRM()
    method.build(network, setting)
    loss, _ = method.loss(network, batch, None, None)
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
