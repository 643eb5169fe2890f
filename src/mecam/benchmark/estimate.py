"""How long runs will take: from runs that were timed, or from a few steps taken now."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

from mecam.benchmark.results import DAMAGE, recipe_of
from mecam.benchmark.worker import TIMING
from mecam.data.open import open_data
from mecam.recipe import Recipe
from mecam.runs import RunError
from mecam.training.machine import find_machine
from mecam.training.run import Run

PROBE_STEPS = 2


def seconds(recipes: Sequence[Recipe], out: Path, device: str = "auto") -> dict[str, float]:
    """Seconds for each run, by its id. What it says of a step includes its share of the evaluations."""
    measured = _measured(out)
    found = {}
    for recipe in recipes:
        kind = _kind(recipe)
        if kind not in measured:
            measured[kind] = _probe(recipe, device)
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


def _probe(recipe: Recipe, device: str) -> float:
    """Seconds a step, evaluations included, from one evaluation and a few steps."""
    run = Run(recipe, find_machine(device, recipe.precision), open_data(recipe.data))
    run.step(0)
    start = time.perf_counter()
    for step in range(PROBE_STEPS):
        loss = run.step(step + 1)
    if loss is not None:
        float(loss)  # waits for the device
    between = time.perf_counter()
    run.evaluate(0)
    return (between - start) / PROBE_STEPS + (time.perf_counter() - between) / recipe.evaluate_every
