"""Estimate how long runs will take, from runs that were timed or from a few steps taken now."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mecam.benchmark.budget import seconds_per_step
from mecam.benchmark.timing import kind_of
from mecam.data.open import open_data
from mecam.optim.registry import find as find_optimizer
from mecam.progress import clock
from mecam.recipe import Recipe
from mecam.training.machine import find_machine
from mecam.training.result import metrics, watched_splits
from mecam.training.run import Run
from mecam.training.step import train_step

SAMPLE = 64  # images of each split
LONG = 3.0  # seconds


def seconds(recipes: Sequence[Recipe], out: Path, device: str = "auto") -> dict[str, float]:
    """Return the seconds of each run by its id, evaluations included.

    Where steps are long, one is timed, and the others are estimated from it by their optimizers' passes.
    """
    measured = seconds_per_step(out)
    passes: dict[tuple[object, ...], float] = {}  # seconds of one, where they are long
    times = {}
    for recipe in recipes:
        kind, work = kind_of(recipe), (recipe.data, recipe.backbone, recipe.batch, recipe.image_size)
        count = find_optimizer(recipe.optimizer).passes
        if kind not in measured:
            measured[kind] = passes[work] * count if work in passes else _probe(recipe, device)
            if measured[kind] > LONG:
                passes.setdefault(work, measured[kind] / count)
        times[recipe.run_id] = measured[kind] * (recipe.steps + 1)
    return times


def forecast(rest: Sequence[Recipe], done: int, out: Path, device: str) -> list[str]:
    """List the missing runs with their estimated time; `done` runs are not missing."""
    taken: dict[str, float] = {}
    reasons = []
    for data in dict.fromkeys(recipe.data for recipe in rest):
        try:
            taken |= seconds([recipe for recipe in rest if recipe.data == data], out, device)
        except (ValueError, ImportError, OSError) as error:  # no data, or no weights, on this machine
            reasons.append(f"time on {data} cannot be estimated: {error}")
    lines = [f"{recipe.run_id}  {clock(taken[r]) if (r := recipe.run_id) in taken else '–'}" for recipe in rest]
    total = f"{clock(sum(taken.values()))} in sequence" if taken or not rest else "time cannot be estimated"
    among_all = f", for {len(taken)} of them" if reasons and taken else ""
    return [*lines, *reasons, f"{len(rest)} runs to do, {done} done; {total}{among_all}"]


def _probe(recipe: Recipe, device: str) -> float:
    """Time a step, with its share of the evaluations, by a few steps and the evaluation of a few images."""
    run = Run(recipe, find_machine(device, recipe.precision), open_data(recipe.data, on_error=recipe.on_error))
    splits = watched_splits(run)
    few = {split: indices[:SAMPLE] for split, indices in splits.items()}
    share = sum(map(len, few.values())) / sum(map(len, splits.values()))
    steps = itertools.count()
    evaluation = _timed(lambda: metrics(run, few)) / share

    def step() -> None:
        if (loss := train_step(run, next(steps))) is not None:
            float(loss)  # waits for the device

    return _timed(step) + evaluation / recipe.evaluate_every


def _timed(work: Callable[[], object]) -> float:
    """Return the seconds of the third call, since the first ones warm up; of an earlier one if it is long."""
    for _ in range(3):
        start = time.perf_counter()
        work()
        taken = time.perf_counter() - start
        if taken > LONG:
            break
    return taken
