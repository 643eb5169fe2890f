"""Fishr against the gradients of single images."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.methods import Batch, Setting
from mecam.methods.fishr import Fishr
from mecam.models.network import Network
from tests.methods.gradients import assert_same_gradient


def built(network: Network, setting: Setting, **settings: float) -> Fishr:
    method = Fishr(**settings)
    method.build(network, setting)
    return method


def variances(network: Network, batch: Batch) -> list[Tensor]:
    """For each domain, of the head's weight and bias, (classes, features + 1), by a backward an image."""
    logits = network.head(network.features(batch.images))
    head = [network.head.weight, network.head.bias]
    found = []
    for own, labels in zip(logits.chunk(batch.domains), batch.labels.chunk(batch.domains), strict=True):
        each = []
        for row, label in zip(own, labels, strict=True):
            weight, bias = torch.autograd.grad(F.cross_entropy(row, label), head, create_graph=True)
            each.append(torch.cat([weight, bias[:, None]], 1))
        gradients = torch.stack(each)
        found.append(((gradients - gradients.mean(0)) ** 2).mean(0))
    return found


def test_two_steps_equal_gradients_of_single_images(
    network: Network, make_batch: Callable[..., Batch], setting: Setting
) -> None:
    method = built(network, setting, lam=300.0, ema=0.9)
    state = method.initial_state()
    running = [torch.zeros(3, 7, dtype=torch.float64)] * 3
    for seed in range(2):
        batch = make_batch(seed, step=1500)
        running = [0.9 * old + 0.1 * new for old, new in zip(running, variances(network, batch), strict=True)]
        scaled = [value / 0.1 for value in running]
        centre = torch.stack(scaled).mean(0)
        penalty = torch.stack([((value - centre) ** 2).mean() for value in scaled]).mean()
        other = F.cross_entropy(network(batch.images), batch.labels) + 300 * penalty
        before = state.clone()
        loss, following = method.loss(network, batch, None, state)
        assert torch.equal(state, before)
        assert not following.requires_grad
        assert_same_gradient(network, loss, other, rtol=1e-9)
        running = [value.detach() for value in running]
        state = following
    torch.testing.assert_close(state, torch.stack(running), rtol=1e-9, atol=1e-15)


def test_before_annealing_it_is_erm_that_keeps_count(network: Network, batch: Batch, setting: Setting) -> None:
    method = built(network, setting, ema=0.9)
    loss, state = method.loss(network, batch, None, method.initial_state())
    torch.testing.assert_close(loss, F.cross_entropy(network(batch.images), batch.labels), rtol=1e-10, atol=0)
    torch.testing.assert_close(state, 0.1 * torch.stack(variances(network, batch)), rtol=1e-9, atol=1e-15)
    assert [step for step in range(setting.steps) if method.restarts(step)] == [1500]


def test_the_gradient_of_a_penalty_does_not_shrink_with_the_average(
    network: Network, batch: Batch, setting: Setting
) -> None:
    late = Batch(batch.images, batch.labels, 3, 4000)
    losses = []
    for ema in (0.0, 0.99):
        method = built(network, setting, ema=ema)
        losses.append(method.loss(network, late, None, method.initial_state())[0])
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-10, atol=0)
