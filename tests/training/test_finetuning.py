"""Parts of the weights, learning rates by layer, checkpointing and accumulation."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from mecam.data.shapes import shapes
from mecam.methods import METHODS
from mecam.recipe import Recipe, RecipeError
from mecam.training.build import check_parts, check_start
from mecam.training.footprint import memory_of_step
from mecam.training.machine import find_machine
from mecam.training.run import Run
from mecam.training.step import train_step

DATA = shapes(per_class=4)
VIT = {"backbone": "timm/test_vit", "pretrained": False, "image_size": 32}
PLAIN = {"optimizer": "sgd", "optimizer_settings": {"momentum": 0.0}}
ACCUMULATING = [name for name, method in METHODS.items() if method.declares("accumulates")]


def recipe_of(**values: Any) -> Recipe:
    return Recipe(**{"target": "sketch", "steps": 4, "batch": 4, "evaluate_every": 4, **values})


def run_of(**values: Any) -> Run:
    if str(values.get("backbone", "")).startswith("timm/"):
        pytest.importorskip("timm")
    return Run(recipe_of(**values), find_machine("cpu"), DATA)


def in_float64(run: Run) -> Run:
    following = run.feed.next
    run.feed.next = lambda step: replace(batch := following(step), images=batch.images.double())  # type: ignore[method-assign]
    for module in (run.trained, *(side.module for side in run.method.sides.values())):
        module.double()
    return run


def changed(run: Run) -> set[str]:
    """Return the names of the parameters that two steps change."""
    before = {name: parameter.clone() for name, parameter in run.trained.named_parameters()}
    train_step(run, 0)
    train_step(run, 1)
    return {name for name, parameter in run.trained.named_parameters() if not torch.equal(parameter, before[name])}


def names(run: Run) -> set[str]:
    return {name for name, _ in run.trained.named_parameters()}


HEAD = {"head.weight", "head.bias"}


def test_each_block_has_its_learning_rate_and_norms_and_biases_no_weight_decay() -> None:
    """One step of SGD by hand, with the depth of every layer listed by hand."""
    values = {"layer_decay": 0.5, "decay_norms": False, "weight_decay": 0.1, "lr": 0.2, "freeze_bn": True, **PLAIN}
    run, by_hand = in_float64(run_of(**values)), in_float64(run_of(**values))
    train_step(run, 0)
    batch = by_hand.feed.next(0)
    cross_entropy(by_hand.network(batch.images), batch.labels).backward()
    depths = {"conv1": 4, "bn1": 4, "layer1": 3, "layer2": 2, "layer3": 1}
    expected = {}
    for name, parameter in by_hand.network.named_parameters():
        depth = 0 if name.startswith("head.") else depths[name.split(".")[1]]
        vector = name.endswith("bias") or ".bn" in name or "downsample.1" in name
        slope = parameter.grad + (0.0 if vector else 0.1) * parameter
        expected[name] = (parameter - 0.2 * 0.5**depth * slope).detach()
    torch.testing.assert_close(dict(run.network.named_parameters()), expected, rtol=0, atol=1e-12)


def test_the_layers_of_a_transformer_follow_a_schedule_under_a_sharpness_aware_optimizer() -> None:
    run = run_of(**VIT, layer_decay=0.5, lr=0.1, lr_schedule="linear", optimizer="sam")
    rates = {}
    train_step(run, 1)
    for group in run.optimizer.param_groups:
        rates |= {id(parameter): group["lr"] for parameter in group["params"]}
    of = {name: rates[id(parameter)] for name, parameter in run.network.named_parameters()}
    now = 0.1 * 4 / 5
    assert of["head.weight"] == pytest.approx(now)
    for name, depth in {
        "pos_embed": 7,
        "blocks.0.attn.qkv.weight": 6,
        "blocks.5.mlp.fc1.bias": 1,
        "norm.bias": 1,
    }.items():
        assert of[f"featurizer.{name}"] == pytest.approx(now * 0.5**depth), name


@pytest.mark.parametrize("optimizer", ["adam", "mecam"])
def test_last_trains_the_last_stage_or_block_and_the_head(optimizer: str) -> None:
    run = run_of(trainable="last", optimizer=optimizer)
    assert changed(run) == HEAD | {name for name in names(run) if name.startswith("featurizer.layer3.")}
    run = run_of(**VIT, trainable="last", optimizer=optimizer)
    last = ("featurizer.blocks.5.", "featurizer.norm.")
    assert changed(run) == HEAD | {name for name in names(run) if name.startswith(last)}


@pytest.mark.parametrize("optimizer", ["adam", "sam"])
def test_norms_trains_scales_and_shifts_and_the_head(optimizer: str) -> None:
    run = run_of(trainable="norms", optimizer=optimizer)
    assert changed(run) == HEAD | {name for name in names(run) if ".bn" in name or ".downsample.1." in name}
    run = run_of(**VIT, trainable="norms", optimizer=optimizer)
    assert changed(run) == HEAD | {name for name in names(run) if ".norm" in name}


@pytest.mark.parametrize("method", ACCUMULATING)
def test_accumulated_gradients_are_those_of_the_whole_batch(method: str) -> None:
    values = {"method": method, "freeze_bn": True, "weight_decay": 0.1, **PLAIN}
    if method in ("lpft", "ermplusplus"):
        values["method_settings"] = {"linear_steps": 0}
    assert_equal_steps(in_float64(run_of(**values)), in_float64(run_of(**values, accumulate=4)))


@pytest.mark.parametrize("optimizer", ["sam", "mecam", "gam", "fsam"])
def test_sharpness_aware_steps_perturb_by_the_gradient_of_the_whole_batch(optimizer: str) -> None:
    values = {"optimizer": optimizer, "base": "sgd", "virtual": "none", "freeze_bn": True}
    values = values if optimizer == "mecam" else {**values, "virtual": "mixstyle"}
    assert_equal_steps(in_float64(run_of(**values)), in_float64(run_of(**values, accumulate=2)))


def assert_equal_steps(run: Run, other: Run) -> None:
    for step in (0, 1):
        losses = [train_step(each, step) for each in (run, other)]
        if losses[0] is not None:
            torch.testing.assert_close(*losses, rtol=0, atol=1e-12)
    torch.testing.assert_close(other.trained.state_dict(), run.trained.state_dict(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "values",
    [
        {"optimizer": "mecam", "dropout": 0.5},  # batch norm is live
        {"optimizer": "sam", "method": "mldg"},  # lends other weights to the network
        {"optimizer": "mecam", "method": "andmask", "optimizer_settings": {"shared_noise": True}},
        {"optimizer": "mecam", **VIT, "dropout": 0.5},  # the virtual domain is inside the blocks
        {"optimizer": "sam", "method": "mixstyle", **VIT},
        {"optimizer": "mecam", "method": "miro", **VIT},
        {"optimizer": "mecam", "backbone": "timm/test_resnet", "pretrained": False, "image_size": 32},
    ],
    ids=lambda values: "-".join(map(str, values.values())),
)
def test_a_step_with_checkpointing_has_the_same_bits(values: dict[str, Any]) -> None:
    plain, checkpointed = run_of(**values), run_of(**values, checkpointing=True)
    for run in (plain, checkpointed):
        torch.manual_seed(0)
        train_step(run, 0)
        train_step(run, 1)
    torch.testing.assert_close(checkpointed.trained.state_dict(), plain.trained.state_dict(), rtol=0, atol=0)


def test_checkpointing_keeps_less_for_the_backward_pass() -> None:
    machine = find_machine("cpu")
    whole, *less = (
        memory_of_step(recipe_of(**values), machine, DATA)[1]
        for values in ({}, {"checkpointing": True}, {"accumulate": 2})
    )
    assert max(less) < 0.6 * whole


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {"accumulate": 2, "method": "coral"},
            "the gradient of coral is not a mean over images, .* erm, .*",
        ),
        ({"accumulate": 2, "method": "andmask"}, "checkpointing=true to save memory"),
        ({"accumulate": 3}, "batch=4 images per domain cannot be split evenly into accumulate=3 parts"),
        ({"accumulate": 2, "optimizer": "sam", "base": "adahessian"}, "adahessian needs the graph of the whole batch"),
        ({"accumulate": 2, "optimizer": "disam"}, "disam compares the losses of the domains on a whole batch"),
        ({"compile": "always", "checkpointing": True}, "compile=always and checkpointing=true .* give one of them"),
        ({"layer_decay": 75.0}, r"layer_decay=75\.0 is not allowed; it must be in \[0, 1\]"),
        ({"lora_rank": 4}, "lora_rank=4 is not used: trainable=all; give trainable=lora"),
        ({"decay_norms": False}, "decay_norms=false is not used: there is no weight decay; give weight_decay"),
        ({"trainable": "head", "layer_decay": 0.5}, "layer_decay=0.5 is not used: trainable=head"),
        ({"trainable": "head", "checkpointing": True}, "checkpointing=true is not used: trainable=head"),
    ],
)
def test_choices_that_do_not_fit_are_refused(values: dict[str, Any], expected: str) -> None:
    with pytest.raises(RecipeError, match=expected):
        check_start(recipe_of(**values)) if "is not used" in expected else check_parts(recipe_of(**values))
