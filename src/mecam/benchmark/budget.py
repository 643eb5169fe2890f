"""A time budget for a benchmark: start no run that is not expected to finish in time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mecam.benchmark.records_file import Record, read_measurements
from mecam.benchmark.results import DAMAGE
from mecam.benchmark.timing import Kind, kind_of, read_timing
from mecam.recipe import Recipe, recipe_of
from mecam.runs import RunError, RunFolder


class Budget:
    """Limit the time of a benchmark, and estimate the time of its runs.

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
        here, elsewhere = list(_timed(self.out)), list(_timed_in(self.records))
        step = _means(here).get(kind_of(recipe), _means(elsewhere).get(kind_of(recipe)))
        if step is None:
            return None
        folder = RunFolder(self.out / recipe.run_id)
        done = recipe.steps + 1 if folder.is_done() else _steps_done(folder)
        alike = [run for run in (*here, *elsewhere) if run.recipe.backbone == recipe.backbone]
        seconds = ([run.measured[name] for run in alike if name in run.measured] for name in self.measure)
        return step * (recipe.steps + 1 - done) + sum(statistics.fmean(times) for times in seconds if times)


class _Timed(NamedTuple):
    recipe: Recipe
    step: float  # seconds per step, with its share of the evaluations
    measured: Mapping[str, float]  # seconds by measurement


def seconds_per_step(out: Path) -> dict[Kind, float]:
    """Return the mean time of a step, with its share of the evaluations, by kind of run."""
    return _means(_timed(out))


def _timed(out: Path) -> Iterator[_Timed]:
    for file in out.glob("*/run.json"):
        with suppress(RunError, OSError, ArithmeticError, *DAMAGE):  # tables report these
            if (timing := read_timing(folder := file.parent)) is not None:
                measured = {name: values["seconds"] for name, values in read_measurements(folder).items()}
                yield _Timed(recipe_of(folder), timing.seconds / timing.steps, measured)


def _timed_in(records: Mapping[str, Record]) -> Iterator[_Timed]:
    for record in records.values():
        with suppress(*DAMAGE):
            recipe = Recipe.from_dict(record.recipe)
            measured = {name: values["seconds"] for name, values in record.measurements.items() if "seconds" in values}
            if record.seconds is not None:
                yield _Timed(recipe, record.seconds / (recipe.steps + 1), measured)


def _means(runs: Iterable[_Timed]) -> dict[Kind, float]:
    times: dict[Kind, list[float]] = {}
    for run in runs:
        times.setdefault(kind_of(run.recipe), []).append(run.step)
    return {kind: statistics.fmean(values) for kind, values in times.items()}


def _steps_done(folder: RunFolder) -> int:
    records = folder.read_records() if folder.exists() else []
    return records[-1]["step"] + 1 if records else 0
