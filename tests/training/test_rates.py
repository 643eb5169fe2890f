"""lr_schedule, warmup, rho_schedule and rho_warmup: what a run's steps see, resuming to the bit, and refusals."""

import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from mecam.data.shapes import ShapesSet, shapes
from mecam.progress import Event
from mecam.recipe import Recipe, RecipeError
from mecam.runs import checkpoint
from mecam.training import Interrupted, train
from mecam.training.build import check_parts
from mecam.training.machine import find_machine
from mecam.training.rates import Rates, initial_rho, lr_factor, rho_factor
from mecam.training.run import Run
from mecam.training.state import load_state_dict, state_dict
from mecam.training.step import train_step

STEPS = 8
BOTH = {"lr_schedule": "cosine", "warmup": 3, "rho_schedule": "inverse_sqrt", "rho_warmup": 2}


@pytest.fixture(scope="module")
def data() -> ShapesSet:
    return shapes(per_class=6)


def recipe(**values: Any) -> Recipe:
    return Recipe(**{"target": "sketch", "steps": STEPS, "evaluate_every": 4, "batch": 4, **values})


def factor(name: str, step: int, steps: int, warmup: int) -> float:
    """The table in mecam.training.rates."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / (steps + 1 - warmup)
    return {
        "constant": 1.0,
        "cosine": (1 + math.cos(math.pi * progress)) / 2,
        "linear": 1 - progress,
        "inverse_sqrt": 1 / math.sqrt(step + 1 - warmup),
    }[name]


@pytest.mark.parametrize("warmup", [0, 1, 3, STEPS])
@pytest.mark.parametrize("name", ["constant", "cosine", "linear", "inverse_sqrt"])
def test_factors_are_the_documented_ones(name: str, warmup: int) -> None:
    lr = lr_factor(recipe(lr_schedule=name, warmup=warmup))
    rho = rho_factor(recipe(rho_schedule=name, rho_warmup=warmup, optimizer="sam"))
    expected = [factor(name, step, STEPS, warmup) for step in range(STEPS + 1)]
    assert [lr(step) for step in range(STEPS + 1)] == pytest.approx(expected, rel=1e-12)
    assert [rho(step) for step in range(STEPS + 1)] == pytest.approx(expected, rel=1e-12)
    assert min(expected) > 0  # every update moves


def seen(run: Run, steps: int) -> list[tuple[list[float], list[float], list[bool]]]:
    """Each step's learning rates, radii and which groups require gradients, as the base optimizer's step finds them."""
    found = []
    base = getattr(run.optimizer, "base_optimizer", run.optimizer)

    def record(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        groups = optimizer.param_groups
        trains = [all(p.requires_grad for p in group["params"]) for group in groups]
        found.append(([float(g["lr"]) for g in groups], [float(g.get("rho", 0)) for g in groups], trains))

    base.register_step_pre_hook(record)
    for step in range(steps):
        train_step(run, step)
    return found


def run_of(data: ShapesSet, **values: Any) -> Run:
    return Run(recipe(**values), find_machine("cpu", "fp32"), data)


def test_every_step_of_training_uses_the_scheduled_values(data: ShapesSet) -> None:
    found = seen(run_of(data, optimizer="mecam", lr=0.01, optimizer_settings={"rho": 0.2}, **BOTH), STEPS + 1)
    steps = range(STEPS + 1)
    assert [lrs for lrs, _, _ in found] == [pytest.approx([0.01 * factor("cosine", t, STEPS, 3)]) for t in steps]
    assert [radii for _, radii, _ in found] == [
        pytest.approx([0.2 * factor("inverse_sqrt", t, STEPS, 2)]) for t in steps
    ]


def test_without_a_schedule_values_are_the_recipe_s_own(data: ShapesSet) -> None:
    found = seen(run_of(data, optimizer="mecam", lr=0.01), 3)
    assert found == [([0.01], [0.1], [True])] * 3


def test_factors_of_a_method_multiply_and_alone_decide_what_trains(data: ShapesSet) -> None:
    """LP-FT trains the head alone at first; a learning rate of 0 freezes nothing."""
    settings = {"linear_steps": 2500, "linear_rate": 2.0}
    run = run_of(data, method="lpft", method_settings=settings, lr=0.01, lr_schedule="linear", warmup=2)
    found = seen(run, STEPS + 1)
    for step, (lrs, _, trains) in enumerate(found):
        scheduled = 0.01 * factor("linear", step, STEPS, 2)
        assert lrs == pytest.approx([0.0, 2 * scheduled] if step < STEPS // 2 else [scheduled, scheduled])
        assert trains == [step >= STEPS // 2, True]
    run = run_of(data, lr=0.0, lr_schedule="cosine")
    assert seen(run, 1) == [([0.0], [0.0], [True])]


@pytest.mark.parametrize("stop", [1, 5])
@pytest.mark.parametrize("optimizer", ["adam", "mecam"])
def test_a_stopped_run_ends_where_an_undisturbed_one_does(
    optimizer: str, stop: int, data: ShapesSet, tmp_path: Path
) -> None:
    """Within the warm-up, and after it."""
    schedules = BOTH if optimizer == "mecam" else {"lr_schedule": "cosine", "warmup": 3}
    chosen = recipe(optimizer=optimizer, **schedules)
    whole = train(chosen, tmp_path / "whole", device="cpu", data=data)

    def interrupt(event: Event) -> None:
        if event.done == stop:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted, match=f"SIGTERM after step {stop}"):
        train(chosen, tmp_path / "stopped", device="cpu", data=data, progress=interrupt)
    resumed = train(chosen, tmp_path / "stopped", device="cpu", data=data)
    for name in ("model.safetensors", "records.jsonl", "done.json"):
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes(), name
    plain = train(recipe(optimizer=optimizer), tmp_path, device="cpu", data=data)
    assert (plain.path / "model.safetensors").read_bytes() != (whole.path / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lr_schedule": "cosin"}, "must be one of constant, cosine, linear, inverse_sqrt"),
        ({"rho_schedule": "step"}, "rho_schedule='step' is not allowed"),
        ({"warmup": -1}, "warmup=-1 is not allowed; it must be at least 0"),
        ({"warmup": 9}, "warmup=9 is not allowed; it must be at most steps=8"),
        ({"rho_warmup": 9, "optimizer": "sam"}, "rho_warmup=9 is not allowed; it must be at most steps=8"),
        ({"warmup": 0.5}, "warmup=0.5 is a float; it must be a whole number"),
        ({"rho_schedule": "cosine"}, "rho_schedule requires a sharpness-aware optimizer; adam has no rho"),
        ({"rho_warmup": 2, "optimizer": "sgd"}, "rho_warmup requires a sharpness-aware optimizer; sgd has no rho"),
    ],
)
def test_refusals(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        check_parts(recipe(**values))


def test_the_rho_that_is_scheduled() -> None:
    assert initial_rho(recipe(optimizer="mecam")) == 0.1
    assert initial_rho(recipe(optimizer="mecam", optimizer_settings={"rho": 0.3})) == 0.3


def test_recipes_without_schedules_keep_their_names() -> None:
    assert Recipe(lr_schedule="constant", warmup=0, rho_schedule="constant").run_id == Recipe().run_id
    named = [{}, {"lr_schedule": "cosine"}, {"warmup": 5}, {"rho_schedule": "cosine"}, {"rho_warmup": 5}]
    assert len({Recipe(**values).run_id for values in named}) == len(named)


def with_tensors(run: Run) -> Run:
    """As on a GPU whose steps are CUDA graphs."""
    run.rates = Rates(run.recipe, run.optimizer, torch.device("cpu"))
    return run


@pytest.mark.parametrize("base", ["sgd", "adam", "adamw"])
def test_tensors_are_filled_in_place_and_train_as_floats_do(base: str, data: ShapesSet) -> None:
    damped = {"eps": 1e-3} if base != "sgd" else {}  # by its own 1e-8 Adam would make much of tiny gradients' rounding
    values = {"optimizer": "sam", "base": base, "lr": 1e-3, "optimizer_settings": damped, **BOTH}
    floats, tensors = run_of(data, **values), with_tensors(run_of(data, **values))
    before = {name: value.clone() for name, value in floats.trained.state_dict().items()}
    held = None
    for step in range(STEPS + 1):
        for run in (floats, tensors):
            train_step(run, step)
        group = tensors.optimizer.param_groups[0]
        held = held or (group["lr"], group["rho"])
        assert group["lr"] is held[0]
        assert group["rho"] is held[1]
        assert float(group["lr"]) == pytest.approx(floats.optimizer.param_groups[0]["lr"])
        assert float(group["rho"]) == pytest.approx(floats.optimizer.param_groups[0]["rho"])
    found, expected = tensors.trained.state_dict(), floats.trained.state_dict()
    moved = sum(float((expected[name] - before[name]).square().sum()) for name in before)
    apart = sum(float((expected[name] - found[name]).square().sum()) for name in before)
    assert apart < 1e-4 * moved  # squared: within 1 %


def test_without_a_schedule_there_is_no_tensor(data: ShapesSet) -> None:
    run = with_tensors(run_of(data, optimizer="mecam", lr=0.01))
    assert seen(run, 1) == [([0.01], [0.1], [True])]
    assert isinstance(run.optimizer.param_groups[0]["lr"], float)
    run = with_tensors(run_of(data, optimizer="mecam", lr=0.01, warmup=2))
    train_step(run, 0)
    assert isinstance(run.optimizer.param_groups[0]["lr"], torch.Tensor)
    assert isinstance(run.optimizer.param_groups[0]["rho"], float)


@pytest.mark.parametrize("saved_as", ["floats", "tensors"])
@pytest.mark.parametrize("loaded_as", ["floats", "tensors"])
def test_values_after_a_checkpoint(saved_as: str, loaded_as: str, data: ShapesSet, tmp_path: Path) -> None:
    """A checkpoint of a GPU's run has tensors on the CPU in its groups; a graph goes on reading the run's own."""

    def made(kind: str) -> Run:
        run = run_of(data, optimizer="mecam", lr=0.01, **BOTH)
        return run if kind == "floats" else with_tensors(run)

    saved, loaded = made(saved_as), made(loaded_as)
    train_step(saved, 0)
    checkpoint.save(tmp_path, state_dict(saved, 0))
    train_step(loaded, 0)
    before = loaded.optimizer.param_groups[0]
    held = before["lr"], before["rho"]
    load_state_dict(loaded, checkpoint.load(tmp_path))
    train_step(loaded, 1)
    group = loaded.optimizer.param_groups[0]
    assert float(group["lr"]) == pytest.approx(0.01 * factor("cosine", 1, STEPS, 3))
    assert float(group["rho"]) == pytest.approx(0.1 * factor("inverse_sqrt", 1, STEPS, 2))
    assert isinstance(group["lr"], torch.Tensor) == (loaded_as == "tensors")
    if loaded_as == "tensors":
        assert (group["lr"] is held[0], group["rho"] is held[1]) == (True, True)
