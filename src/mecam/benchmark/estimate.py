"""Estimate how long runs take, from timed runs or from a few steps taken now; keep a benchmark in a time budget."""

from __future__ import annotations

import shlex
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from mecam.benchmark.records_file import Record, read_measurements
from mecam.benchmark.results import DAMAGE
from mecam.data.open import open_data
from mecam.optim.registry import find as find_optimizer
from mecam.progress import clock
from mecam.recipe import Recipe, is_known, recipe_of
from mecam.runs import RunError, RunFolder
from mecam.runs.timing import read_timing
from mecam.training.machine import find_machine
from mecam.training.speed import Cost, cost_of

LONG, LONG_IN_ALL = 3.0, 36000.0  # seconds of a step, and of all runs
Kind = tuple[object, ...]


class Budget:
    """Limit the time of a benchmark: start no run that is not expected to finish in time.

    Args:
        records: runs of another folder or machine, for kinds of runs that were not timed in `out`.
        measure: names of the measurements after each run.
    """

    def __init__(
        self, minutes: float, out: Path, *, records: Mapping[str, Record] | None = None, measure: Sequence[str] = ()
    ) -> None:
        if not minutes > 0:
            raise ValueError(f"--minutes {minutes:g} is not allowed; it must be positive")
        self.end = time.monotonic() + 60 * minutes
        self.out, self.records, self.measure = out, records or {}, measure
        self.refused = False  # whether a run did not fit

    def left(self) -> float:
        """Return the seconds that are left."""
        return self.end - time.monotonic()

    @property
    def is_spent(self) -> bool:
        """Whether it kept a run from starting or finishing."""
        return self.refused or self.left() <= 0

    def fits(self, recipe: Recipe) -> bool:
        """Return whether the run is expected to finish in time; True if no run of its kind was timed."""
        fits = self.left() > (self.expected(recipe) or 0.0)
        self.refused |= not fits
        return fits

    def expected(self, recipe: Recipe) -> float | None:
        """Return the seconds that the rest of a run takes, measurements included; None if nothing like it was timed."""
        here, elsewhere = _timed_in(self.out), _timed_records(self.records)
        step = {**_means(elsewhere), **_means(here)}.get(_kind(recipe))
        if step is None:
            return None
        folder, left = RunFolder(self.out / recipe.run_id), recipe.steps + 1
        if folder.is_done():
            left = 0
        elif folder.exists() and (records := folder.read_records()):
            left = recipe.steps - records[-1]["step"]
        alike = [run for run in (*here, *elsewhere) if run.recipe.backbone == recipe.backbone]
        measured = ([run.measured[name] for run in alike if name in run.measured] for name in self.measure)
        return step * left + sum(statistics.fmean(times) for times in measured if times)


def seconds(recipes: Sequence[Recipe], out: Path, device: str = "auto") -> dict[str, float]:
    """Return the seconds of each run by its id, evaluations included.

    Runs of the same kind are measured once, if none was timed in `out`. Where steps are long, one kind is measured, and
    the others are estimated from it by their optimizers' passes.
    """
    timed = _means(_timed_in(out))
    costs: dict[Kind, Cost] = {}
    passes: dict[Kind, Cost] = {}  # of one pass per step, where steps are long
    cached: set[Kind] = set()  # kinds of work whose features an earlier run computes
    times = {}
    for recipe in recipes:
        kind, work = _kind(recipe), _work(recipe)
        if kind in timed:
            times[recipe.run_id] = timed[kind] * (recipe.steps + 1)
            continue
        if kind not in costs:
            count = find_optimizer(recipe.optimizer).passes
            if work in passes:
                costs[kind] = replace(passes[work], step=passes[work].step * count)
            else:
                data = open_data(recipe.data, **recipe.reading)
                costs[kind] = cost_of(recipe, find_machine(device, recipe.precision), data)
            if costs[kind].step > LONG:
                passes.setdefault(work, replace(costs[kind], step=costs[kind].step / count))
        cost = replace(costs[kind], start=0.0) if work in cached else costs[kind]
        times[recipe.run_id] = cost.seconds(recipe.steps, recipe.evaluate_every)
        cached.add(work)
    return times


def forecast(rest: Sequence[Recipe], done: int, out: Path, device: str) -> list[str]:
    """List the missing runs with their estimated time; `done` runs are not missing."""
    times: dict[str, float] = {}
    reasons = []
    for data in dict.fromkeys(recipe.data for recipe in rest):
        try:
            times |= seconds([recipe for recipe in rest if recipe.data == data], out, device)
        except (ValueError, ImportError, OSError) as error:  # no data, or no weights, on this machine
            reasons.append(f"time on {data} cannot be estimated: {error}")
    lines = [f"{name}  {clock(times[name]) if name in times else '–'}" for name in (r.run_id for r in rest)]
    total = f"{clock(sum(times.values()))} in sequence" if times or not rest else "time cannot be estimated"
    among_all = f", for {len(times)} of them" if reasons and times else ""
    summary = f"{len(rest)} runs to do, {done} done; {total}{among_all}"
    return [*lines, *reasons, summary, *(_cheaper(rest) if sum(times.values()) > LONG_IN_ALL else ())]


def _cheaper(recipes: Sequence[Recipe]) -> list[str]:
    """Suggest options that take less time than these runs."""
    seeds, folders = {recipe.seed for recipe in recipes}, {r.data for r in recipes if not is_known(r.data)}
    ways = []
    if any(recipe.trainable != "head" for recipe in recipes):
        ways.append("--trainable head (heads on cached features of the frozen backbone)")
    if len(seeds) > 1:
        ways.append(f"--seeds {min(seeds)} (one of {len(seeds)} seeds)")
    ways.append("--batch 8 --steps 500 (fewer and smaller steps)")
    ways += [f"mecam fit {shlex.quote(data)} --minutes 15 (one model, and its expected accuracy)" for data in folders]
    return ["cheaper:", *(f"  {way}" for way in ways[:4])]


class _Timed(NamedTuple):
    recipe: Recipe
    step: float  # seconds per step, with its share of the evaluations
    measured: Mapping[str, float]  # seconds by measurement


def _timed_in(out: Path) -> list[_Timed]:
    runs = []
    for file in out.glob("*/run.json"):
        with suppress(RunError, OSError, ArithmeticError, *DAMAGE):  # tables report these
            if (timing := read_timing(folder := file.parent)) is not None:
                measured = _seconds(read_measurements(folder))
                runs.append(_Timed(recipe_of(folder), timing.seconds / timing.steps, measured))
    return runs


def _timed_records(records: Mapping[str, Record]) -> list[_Timed]:
    runs = []
    for record in records.values():
        with suppress(*DAMAGE):
            recipe = Recipe.from_dict(record.recipe)
            if record.seconds is not None:
                runs.append(_Timed(recipe, record.seconds / (recipe.steps + 1), _seconds(record.measurements)))
    return runs


def _seconds(measurements: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {name: values["seconds"] for name, values in measurements.items() if "seconds" in values}


def _kind(recipe: Recipe) -> Kind:
    """Return the entries that the time of a step depends on."""
    return recipe.method, recipe.optimizer, *_work(recipe)


def _work(recipe: Recipe) -> Kind:
    """Return the entries that the time of a pass depends on."""
    memory = recipe.checkpointing, recipe.accumulate
    return recipe.data, recipe.sources, recipe.backbone, recipe.batch, recipe.image_size, recipe.trainable, *memory


def _means(runs: Iterable[_Timed]) -> dict[Kind, float]:
    """Return the mean time of a step by kind of run."""
    times: dict[Kind, list[float]] = {}
    for run in runs:
        times.setdefault(_kind(run.recipe), []).append(run.step)
    return {kind: statistics.fmean(values) for kind, values in times.items()}
