"""How long runs will take: from runs that were timed, or from a few steps taken now."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from mecam.benchmark.results import DAMAGE, recipe_of
from mecam.benchmark.worker import TIMING
from mecam.data.open import open_data
from mecam.data.pack import OnError
from mecam.optim.registry import find as find_optimizer
from mecam.recipe import Recipe
from mecam.runs import RunError
from mecam.training.machine import find_machine
from mecam.training.run import Run

SAMPLE = 64  # images of each split
LONG = 3.0  # seconds


def seconds(
    recipes: Sequence[Recipe], out: Path, device: str = "auto", *, on_error: OnError = "refuse"
) -> dict[str, float]:
    """Seconds for each run, by its id. What it says of a step includes its share of the evaluations.

    Where steps are long, one is taken, and the others are told from it by their optimizers' passes.
    """
    measured = _measured(out)
    passes: dict[tuple[object, ...], float] = {}  # seconds of one, where they are long
    found = {}
    for recipe in recipes:
        kind, work = _kind(recipe), (recipe.data, recipe.backbone, recipe.batch, recipe.image_size)
        count = find_optimizer(recipe.optimizer).passes
        if kind not in measured:
            measured[kind] = passes[work] * count if work in passes else _probe(recipe, device, on_error)
            if measured[kind] > LONG:
                passes.setdefault(work, measured[kind] / count)
        found[recipe.run_id] = measured[kind] * (recipe.steps + 1)
    return found


def _kind(recipe: Recipe) -> tuple[object, ...]:
    """What the time of a step depends on."""
    return recipe.data, recipe.backbone, recipe.method, recipe.optimizer, recipe.batch, recipe.image_size


def _measured(out: Path) -> dict[tuple[object, ...], float]:
    times: dict[tuple[object, ...], list[float]] = {}
    for file in out.glob("*/run.json"):
        with contextlib.suppress(RunError, OSError, ArithmeticError, *DAMAGE):  # which tables name
            timing = json.loads((file.parent / TIMING).read_bytes())
            a_step = timing["seconds"] / timing["steps"]
            times.setdefault(_kind(recipe_of(file.parent)), []).append(a_step)
    return {kind: sum(values) / len(values) for kind, values in times.items()}


def _probe(recipe: Recipe, device: str, on_error: OnError) -> float:
    """Seconds a step, evaluations included, from a step or two and the evaluation of a few images."""
    run = Run(recipe, find_machine(device, recipe.precision), open_data(recipe.data, on_error=on_error))
    splits = run.watched()
    few = {name: (domain, part[:SAMPLE]) for name, (domain, part) in splits.items()}
    share = sum(len(part) for _, part in few.values()) / sum(len(part) for _, part in splits.values())
    steps = itertools.count()
    evaluation = _timed(lambda: run.metrics(few)) / share
    return _timed(lambda: _finished(run.step(next(steps)))) + evaluation / recipe.evaluate_every


def _finished(loss: Tensor | None) -> None:
    if loss is not None:
        float(loss)  # waits for the device


def _timed(work: Callable[[], object]) -> float:
    """Seconds of work that warms up: of the third time, unless the first took so long that this says enough."""
    for _ in range(3):
        start = time.perf_counter()
        work()
        taken = time.perf_counter() - start
        if taken > LONG:
            break
    return taken
