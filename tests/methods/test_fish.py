"""Fish against a clone of the network, torch's own Adam, and an interpolation of weights."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from mecam.methods import create
from mecam.methods.base import Batch, Setting
from mecam.methods.fish import META_LR, Fish
from mecam.models.network import Network
from mecam.profiles import lr_ratio
from mecam.recipe import Recipe, is_variant
from mecam.training.build import build_optimizer


def published(network: Network, batch: Batch, kept: Any, *, lr: float, weight_decay: float, meta_lr: float) -> Any:
    """A step of Fish on the network: a clone takes an Adam step per domain, the weights move towards it."""
    clone = deepcopy(network)
    adam = torch.optim.Adam(clone.parameters(), lr=lr, weight_decay=weight_decay)
    if kept is not None:
        adam.load_state_dict(kept)
    for images, labels in batch.by_domain():
        adam.zero_grad()
        F.cross_entropy(clone(images), labels).backward()  # type: ignore[no-untyped-call]
        adam.step()
    with torch.no_grad():
        for start, end in zip(network.parameters(), clone.parameters(), strict=True):
            start.lerp_(end, meta_lr)
    return deepcopy(adam.state_dict())


@pytest.mark.parametrize(
    ("values", "meta_lr"),
    [
        ({}, 0.5),
        ({"optimizer": "sgd"}, 0.5),
        ({"optimizer": "sgd", "lr": 0.5, "weight_decay": 0}, 0.5),
        ({"lr": 0.1, "weight_decay": 0.2}, 0.1),
        ({"method_settings": {"meta_lr": 0.05}}, 0.05),
        ({"lr": 0.5, "method_settings": {"meta_lr": 0.05}}, 0.05),
    ],
)
def test_a_recipe_of_fish_is_fish(
    values: dict[str, Any], meta_lr: float, make_network: Callable[..., Network], make_batch: Callable[..., Batch]
) -> None:
    """Three steps of the method and optimizer that a recipe stands for, the outer one without momentum and decay."""
    recipe = Recipe(**{"data": "PACS", "method": "fish", **values})
    assert not is_variant(recipe)
    ours, theirs, kept = make_network(), make_network(), None
    method = create("fish", **recipe.method_settings)
    method.build(ours, Setting(3, 3, recipe.steps, recipe.lr, recipe.weight_decay, lr_ratio(vars(recipe))))
    optimizer = build_optimizer(recipe, method, ours, ours, torch.device("cpu")).base_optimizer
    state = method.initial_state()
    for step in range(3):
        batch = make_batch(seed=step)
        _, state = method.gradient(ours, batch, None, state)
        optimizer.step()
        kept = published(theirs, batch, kept, lr=5e-5, weight_decay=recipe.weight_decay, meta_lr=meta_lr)
        for parameter, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(parameter, other, rtol=1e-10, atol=1e-12)
    start = make_network()
    assert not torch.allclose(ours.head.weight, start.head.weight, rtol=1e-5)


@pytest.mark.parametrize(
    ("values", "variant"),
    [
        ({}, False),
        ({"optimizer": "sgd", "weight_decay": 1e-4}, False),
        ({"optimizer": "sgd", "optimizer_settings": {"momentum": 0}}, False),
        ({"optimizer": "sgd", "optimizer_settings": {"momentum": 0.9}}, True),
        ({"optimizer": "sgd", "optimizer_settings": {"weight_decay": 1e-4}}, True),
        ({"optimizer": "adam"}, True),
        ({"optimizer": "mecam", "base": "sgd"}, True),
    ],
)
def test_another_outer_step_is_a_variant(values: dict[str, Any], variant: bool) -> None:
    assert is_variant(Recipe(**{"method": "fish", **values})) is variant
    assert not is_variant(Recipe(**{**values, "method": "erm"}))


def test_stored_recipes_mean_what_they_did(network: Network, batch: Batch, setting: Setting) -> None:
    """Without inner_lr, G = meta_lr (θ − θ̃) / lr; a recipe under SGD that does not name its momentum had one."""
    assert is_variant(Recipe.from_dict({"method": "fish", "optimizer": "sgd", "lr": 0.06}))
    for settings, meta_lr in (({}, 0.5), ({"meta_lr": 0.1}, 0.1)):
        method, twin = create("fish", **settings), deepcopy(network)
        method.build(network, setting)
        method.gradient(network, batch, None, method.initial_state())
        published(twin, batch, None, lr=setting.lr, weight_decay=0, meta_lr=1.0)
        for parameter, end in zip(network.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, meta_lr * (parameter - end) / setting.lr, rtol=1e-9, atol=1e-11)


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
        kept = published(theirs, batch, kept, lr=setting.lr, weight_decay=weight_decay, meta_lr=0.3)
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


def test_a_recipe_and_the_method_have_one_default() -> None:
    assert Recipe(method="fish").lr == META_LR
