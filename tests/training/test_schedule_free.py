"""Runs under schedulefree: evaluated, selected and saved at the average, resumed bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mecam.data.shapes import ShapesSet, shapes
from mecam.recipe import Recipe, RecipeError
from mecam.runs import checkpoint
from mecam.training.loop import train
from mecam.training.machine import find_machine
from mecam.training.result import finish, validate
from mecam.training.run import Run
from mecam.training.state import load_state_dict, state_dict
from mecam.training.step import train_step


@pytest.fixture(scope="module")
def data() -> ShapesSet:
    return shapes(per_class=4)


def recipe(**values: Any) -> Recipe:
    return Recipe(**{"target": "sketch", "steps": 4, "evaluate_every": 2, "batch": 4, "image_size": 16, **values})


@pytest.mark.parametrize("values", [{"optimizer": "schedulefree"}, {"optimizer": "sam", "base": "schedulefree"}])
def test_a_run_keeps_the_average_and_trains_on_where_it_was(data: ShapesSet, values: dict[str, str]) -> None:
    run = Run(recipe(selection="last", **values), find_machine("cpu"), data)
    for step in range(3):
        train_step(run, step)
    base: Any = run.optimizer.base_optimizer
    training = {name: value.clone() for name, value in run.trained.state_dict().items()}
    # y = (1-b) z + b x, so x = y + (1 - 1/b) (z - y)
    expected = {
        name: p.double() + (1 - 1 / 0.9) * (base.state[p]["z"].double() - p.double())
        for name, p in run.trained.named_parameters()
    }
    validate(run, 3)
    for name, value in run.trained.state_dict().items():
        assert torch.equal(value, training[name])
    kept = finish(run).weights
    for name, value in expected.items():
        torch.testing.assert_close(kept[name].double(), value, rtol=0, atol=1e-6)
        assert not torch.equal(kept[name], training[name])


@pytest.mark.parametrize("optimizer", ["muon", "schedulefree", "ademamix", "soap", "lion"])
def test_a_run_resumes_bit_for_bit(data: ShapesSet, optimizer: str, tmp_path: Path) -> None:
    settings = recipe(optimizer="mecam", base=optimizer)
    whole = Run(settings, find_machine("cpu"), data)
    for step in range(4):
        if step == 2:
            checkpoint.save(tmp_path, state_dict(whole, 1))
        train_step(whole, step)
    resumed = Run(settings, find_machine("cpu"), data)
    load_state_dict(resumed, checkpoint.load(tmp_path))
    for step in range(2, 4):
        train_step(resumed, step)
    for one, other in zip(whole.trained.parameters(), resumed.trained.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("values", [{"averaging": "ema"}, {"lr_schedule": "cosine"}])
def test_what_it_replaces_is_refused(data: ShapesSet, values: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="does not fit schedulefree"):
        train(recipe(optimizer="sam", base="schedulefree", **values), tmp_path, device="cpu", data=data)
