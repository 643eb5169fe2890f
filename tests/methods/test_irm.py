"""IRM against a double backward through the scale."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.methods import Batch, Setting
from mecam.methods._anneal import Annealed
from mecam.methods.fishr import Fishr
from mecam.methods.irm import IRM
from mecam.methods.vrex import VREx
from mecam.models.network import Network
from tests.methods.gradients import assert_same_gradient


def slope(logits: Tensor, labels: Tensor) -> Tensor:
    scale = torch.ones((), dtype=logits.dtype, requires_grad=True)
    return torch.autograd.grad(F.cross_entropy(scale * logits, labels), scale, create_graph=True)[0]


def expected(network: Network, batch: Batch, weight: float) -> Tensor:
    logits = network(batch.images).chunk(batch.domains)
    terms = [
        F.cross_entropy(own, labels) + weight * slope(own[::2], labels[::2]) * slope(own[1::2], labels[1::2])
        for own, labels in zip(logits, batch.labels.chunk(batch.domains), strict=True)
    ]
    return torch.stack(terms).mean()


@pytest.mark.parametrize(("domains", "each"), [(3, 6), (1, 6), (2, 2), (2, 5)])
@pytest.mark.parametrize(("step", "weight"), [(499, 1.0), (500, 40.0)])
def test_loss_and_gradient_equal_a_double_backward(
    network: Network,
    make_batch: Callable[..., Batch],
    setting: Setting,
    domains: int,
    each: int,
    step: int,
    weight: float,
) -> None:
    batch = make_batch(domains=domains, each=each, step=step)
    method = IRM(lam=40.0)
    method.build(network, setting)
    loss, _ = method.loss(network, batch, None, None)
    other = expected(network, batch, weight)
    assert_same_gradient(network, loss, other)


def test_the_penalty_vanishes_where_one_scale_is_optimal(network: Network, setting: Setting, batch: Batch) -> None:
    method = IRM(lam=1e5)
    method.build(network, setting)
    torch.nn.init.zeros_(network.head.weight)
    torch.nn.init.zeros_(network.head.bias)
    late = Batch(batch.images, batch.labels, 3, step=4000)
    loss, _ = method.loss(network, late, None, None)
    torch.testing.assert_close(loss, torch.tensor(3.0, dtype=loss.dtype).log())


@pytest.mark.parametrize(("method", "start"), [(IRM(), 500), (VREx(), 500), (Fishr(), 1500), (IRM(anneal=99.9), 99)])
@pytest.mark.parametrize("steps", [5000, 15000])
def test_annealing_starts_after_an_absolute_number_of_steps(
    method: Annealed, start: int, steps: int, network: Network
) -> None:
    """DomainNet's 15,000 steps included."""
    method.build(network, Setting(classes=3, domains=3, steps=steps, lr=0.01))
    assert [step for step in range(steps + 1) if method.restarts(step)] == [start]
    assert method.weight(start - 1) == method.before
    assert method.weight(start) == method.lam


def test_annealing_is_in_proportion_in_a_short_run(network: Network) -> None:
    method = IRM(lam=7.0, anneal=500)
    method.build(network, Setting(classes=3, domains=3, steps=300, lr=0.01))
    assert [step for step in range(300) if method.restarts(step)] == [30]
    assert [method.weight(step) for step in (0, 29, 30, 299)] == [1.0, 1.0, 7.0, 7.0]
    method.build(network, Setting(classes=3, domains=3, steps=4, lr=0.01))
    assert not any(method.restarts(step) for step in range(4))
    assert method.weight(0) == 7.0
