"""Fish against a clone of the network, torch's own Adam, and an interpolation of weights."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from mecam.methods.base import Batch, Setting
from mecam.methods.fish import Fish
from mecam.models.network import Network


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_plain_sgd_makes_it_fish(
    make_network: Callable[..., Network], make_batch: Callable[..., Batch], setting: Setting, weight_decay: float
) -> None:
    """Three steps, through which the inner Adam's state lasts."""
    setting = replace(setting, weight_decay=weight_decay)
    ours, theirs, method = make_network(), make_network(), Fish(meta_lr=0.3)
    method.build(ours, setting)
    sgd, state, kept = torch.optim.SGD(ours.parameters(), lr=setting.lr), method.initial_state(), None
    for step in range(3):
        batch = make_batch(seed=step)
        _, state = method.gradient(ours, batch, None, state)
        sgd.step()
        clone = deepcopy(theirs)
        adam = torch.optim.Adam(clone.parameters(), lr=setting.lr, weight_decay=setting.weight_decay)
        if kept is not None:
            adam.load_state_dict(kept)
        for images, labels in batch.by_domain():
            adam.zero_grad()
            F.cross_entropy(clone(images), labels).backward()  # type: ignore[no-untyped-call]
            adam.step()
        kept = deepcopy(adam.state_dict())
        with torch.no_grad():
            for start, end in zip(theirs.parameters(), clone.parameters(), strict=True):
                start.lerp_(end, 0.3)
        for parameter, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(parameter, other, rtol=1e-10, atol=1e-12)
    assert kept is not None
    assert state["steps"] == kept["state"][0]["step"] == 9
    for number, name in enumerate(dict(ours.named_parameters())):
        torch.testing.assert_close(state["mean"][name], kept["state"][number]["exp_avg"], rtol=1e-9, atol=1e-14)
        torch.testing.assert_close(state["square"][name], kept["state"][number]["exp_avg_sq"], rtol=1e-9, atol=1e-14)


def test_a_pass_leaves_weights_and_state_and_shows_batch_norm_one_plain_pass(
    make_network: Callable[..., Network], batch: Batch, setting: Setting
) -> None:
    network, plain, method = make_network(), make_network(), Fish()
    method.build(network, setting)
    _, state = method.gradient(plain, batch, None, method.initial_state())
    before: dict[str, Any] = deepcopy(state)
    network.load_state_dict(make_network().state_dict())
    plain.load_state_dict(make_network().state_dict())
    value, following = method.gradient(network, batch, None, state)
    assert value == F.cross_entropy(plain(batch.images), batch.labels)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(network.state_dict()[name], tensor), name
    assert state["steps"] == before["steps"] == 3
    assert following["steps"] == 6
    for kind in ("mean", "square"):
        for name, tensor in before[kind].items():
            assert torch.equal(state[kind][name], tensor)
            assert not torch.equal(following[kind][name], tensor)


def test_the_size_of_the_gradient_is_that_of_adams_steps(network: Network, batch: Batch, setting: Setting) -> None:
    """The first step from fresh moments is a sign; the later ones are of its size whatever lr is."""
    for lr in (1e-9, 0.0):
        method = Fish(meta_lr=1.0)
        method.build(network, replace(setting, lr=lr))
        one = Batch(*batch.by_domain()[0], 1)
        method.gradient(network, one, None, method.initial_state())
        for parameter in network.parameters():
            assert parameter.grad is not None
            large = parameter.grad[parameter.grad.abs() > 0.5]
            torch.testing.assert_close(large.abs(), torch.ones_like(large), rtol=1e-3, atol=0)
        assert network.head.weight.grad is not None
        assert (network.head.weight.grad.abs() > 0.99).all()


def test_the_order_of_domains_matters_and_frozen_weights_do_not_move(
    network: Network, batch: Batch, setting: Setting
) -> None:
    network.featurizer.requires_grad_(False)
    method = Fish()
    method.build(network, setting)
    method.gradient(network, batch, None, method.initial_state())
    first = network.head.weight.grad
    turned = Batch(batch.images.flip(0), batch.labels.flip(0), batch.domains)
    method.gradient(network, turned, None, method.initial_state())
    assert first is not None
    assert network.head.weight.grad is not None
    assert not torch.allclose(first, network.head.weight.grad, rtol=1e-6)
    assert all(p.grad is None for p in network.featurizer.parameters())
