"""Measure finished runs: `mecam curvature`, `spectrum` and `landscape`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mecam.analysis import compare_landscapes, table5, tracked
from mecam.analysis import curvature as curvatures
from mecam.analysis import spectrum as spectra
from mecam.analysis._figure import check_ending
from mecam.analysis.measures import Measure, find_all, further
from mecam.analysis.runs import objective_of, virtual_domain_of
from mecam.analysis.tracked import Record, Summary
from mecam.benchmark import results as benchmarks
from mecam.benchmark.results import Result, read_runs
from mecam.progress import Progress, named, silent
from mecam.recipe import Recipe
from mecam.runs import RunError, find_runs, write_atomic
from mecam.training.machine import find_machine

CURVATURE = "curvature.json"  # in a run's folder, for the page
TRACKING = "tracking.jsonl"  # there too, of a run that was trained with track=k
# by default, for a spectrum: a product takes 1.6 ms per image on one core (resnet8), and a density takes 130 of them
SPECTRUM_IMAGES = 512
STEPS, REPEATS = 30, 3  # of a density
DIRECTIONS = 8  # of an average sharpness


@dataclass(frozen=True)
class Curvatures:
    """The curvature of runs: by run, in the rows of a table, and while training where that was tracked."""

    measured: Mapping[str, table5.Measured]
    rows: Mapping[str, table5.Row]
    summaries: Mapping[str, Summary]
    notes: Sequence[str]
    files: Sequence[Path]  # the figures

    def text(self) -> str:
        trained = [f"{name}, while training\n{summary.text()}" for name, summary in self.summaries.items()]
        table = table5.table(self.rows, stars=table5.incomparable(self.rows) is None)
        blocks = [table, "\n".join(self.notes), *trained, "\n".join(map(str, self.files))]
        return "\n\n".join(filter(None, blocks))

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers, for JSON: by row, and by run."""
        comparable = len(self.rows) > 1 and table5.incomparable(self.rows) is None
        starred = table5.smallest(self.rows) if comparable else {}
        rows = {
            name: {**row.to_dict(), "best": [rho in starred.get(name, ()) for rho in row.radii]}
            for name, row in self.rows.items()
        }
        runs = {}
        for name, one in self.measured.items():
            result, recipe = one.result, one.result.recipe
            place = {"run": str(result.path), "data": result.data, "target": recipe.target, "seed": recipe.seed}
            training = {"training": self.summaries[name].to_dict()} if name in self.summaries else {}
            measures = {"measures": one.further} if one.further else {}
            runs[name] = {**place, **one.curvature.to_dict(one.exact), **measures, **training}
        return {"rows": rows, "runs": runs, "notes": list(self.notes)}


def curvature(
    runs: Sequence[Path],
    radii: Sequence[float],
    *,
    split: str = "train",
    exact: bool = False,
    sharpness: bool = False,
    measure: str | Sequence[str] = (),
    images: int | None = None,
    double: bool = False,
    compare: str | None = None,
    per_run: bool = False,
    plot: Path | None = None,
    data: Path | None = None,
    device: str = "auto",
    progress: Progress = silent,
) -> Curvatures:
    """Measure runs; each run's curvature also goes to its folder, for the web page.

    `measure` names further columns (mecam.analysis.measures).

    A records file in place of runs gives what `mecam bench --measure` measured; other options do not apply to it.
    Runs that were tracked while training get a summary of their records; with `plot`, also a figure of them.
    """
    if compare not in (None, "paper"):
        raise ValueError(f"compare={compare!r} is not supported; use 'paper'")
    if plot is not None:
        check_ending(plot)
    measures = find_all(measure) if measure else []
    if len(runs) == 1 and runs[0].is_file():
        measured, failed = _recorded(runs[0], split)
        chosen = {name: one.result for name, one in measured.items()}
    else:
        results, left_out = finished(runs)
        chosen = table5.named(results)
        dtype = torch.float64 if double else torch.float32
        options = {"limit": images, "dtype": dtype, "device": find_machine(device).device, "data": data}
        measured, failed = _measured(chosen, split, radii, exact, sharpness, measures, options, progress)
        failed = [*left_out, *failed]
    rows = (table5.single if per_run else table5.grouped)(list(measured.values()), compare=compare == "paper")
    histories = {name: records for name, result in chosen.items() if (records := _tracked(result.path))}
    summaries = {
        name: tracked.summary(records, noisy=_noisy(chosen[name].recipe)) for name, records in histories.items()
    }
    files: list[Path] = []
    if plot is not None:
        files.append(curvatures.plot({name: row.runs for name, row in rows.items()}, plot))
        files += [tracked.plot(records, _beside(plot, name)) for name, records in histories.items()]
    return Curvatures(measured, rows, summaries, [*table5.notes(rows), *failed], files)


def _recorded(file: Path, split: str) -> tuple[dict[str, table5.Measured], list[str]]:
    """Return the measurements in a records file by run, and a problem for each run that cannot be read."""
    results, problems = benchmarks.read(file)
    by_path = {}
    for result in results:
        measurements = {} if result.record is None else result.record.measurements
        if split in measurements.get("curvature", {}):
            curve, eigenvalue = measurements["curvature"][split], measurements.get("eigenvalue", {})
            exact = curvatures.Exact.from_dict(eigenvalue) if "largest_eigenvalue" in eigenvalue else None
            by_path[result.path] = table5.Measured(result, curvatures.Curvature.from_dict(curve), exact)
    if not by_path:
        raise RunError(f"{file} has no curvature on the {split} split; mecam bench --measure curvature adds it")
    names = table5.named([one.result for one in by_path.values()])
    return {name: by_path[result.path] for name, result in names.items()}, problems


def _measured(
    runs: Mapping[str, Result],
    split: str,
    radii: Sequence[float],
    exact: bool,
    sharpness: bool,
    measures: Sequence[Measure],
    options: Mapping[str, Any],
    progress: Progress,
) -> tuple[dict[str, table5.Measured], list[str]]:
    """Measure each run and write its curvature.json; return a note for each run that cannot be measured."""
    average = DIRECTIONS if any(measure.name == "average" for measure in measures) else 0
    measured: dict[str, table5.Measured] = {}
    errors: dict[str, RunError] = {}
    for name, result in runs.items():
        try:
            objective = objective_of(result.path, split, mixed=sharpness, **options)  # type: ignore[arg-type]
            domain = virtual_domain_of(result.path, objective) if sharpness else None
            with arithmetic_errors(result.path):
                report = named(progress, name)
                curve = curvatures.curvature(
                    objective, radii, virtual_domain=domain, sharpness=sharpness, average=average, progress=report
                )
                eigenvalue = curvatures.exact(objective, progress=report) if exact else None
                columns = further(objective, measures, report)
        except RunError as error:
            errors[name] = error
            continue
        content = {**curve.to_dict(eigenvalue), **({"measures": columns} if columns else {})}
        write_atomic(result.path / CURVATURE, json.dumps(content, indent=2).encode())
        measured[name] = table5.Measured(result, curve, eigenvalue, columns)
    if not measured:
        raise next(iter(errors.values()))
    return measured, [f"{name} is left out: {error}" for name, error in errors.items()]


def spectrum(
    run: Path,
    *,
    split: str,
    top: int,
    draws: int,
    sketch: int,
    density: Path | None,
    images: int | None,
    device: str,
    data: Path | None = None,
    progress: Progress = silent,
) -> list[str]:
    """Compute eigenvalues and trace, and draw the density; return a line for each."""
    if density is not None:
        check_ending(density)
    objective = objective_of(
        run,
        split,  # type: ignore[arg-type]
        limit=SPECTRUM_IMAGES if images is None else images,
        device=find_machine(device).device,
        data=data,
    )
    with arithmetic_errors(run):
        values = spectra.eigenvalues(objective, top, progress=progress)
        trace = spectra.trace(objective, draws=draws, sketch=sketch, progress=progress)
        lines = [
            f"Hessian of {values.parameters:,} weights over {_sample(values.samples, split, images, SPECTRUM_IMAGES)}",
            f"eigenvalues of the largest magnitude: {', '.join(f'{value:.4g}' for value in values.values)} "
            f"(residuals within {values.tolerance:.1%}, {values.products} products)",
            f"trace: {trace.estimate:.4g} ± {trace.standard_error:.2g} (standard error over {draws} draws)",
        ]
        if density is not None:
            smooth = spectra.density(objective, steps=STEPS, repeats=REPEATS, progress=progress)
            lines.append(f"density: {spectra.plot(smooth, density)} ({REPEATS} starts of {STEPS} steps)")
    return lines


def landscape(
    runs: Sequence[Path],
    out: Path,
    *,
    split: str,
    directions: str,
    dimensions: int,
    radius: float,
    seed: int,
    images: int | None,
    device: str,
    **options: Any,
) -> list[str]:
    """Draw the loss around the runs; return the files that were written and notes, a line each.

    Further options are those of `compare_landscapes.through` and `around`.
    """
    if dimensions not in (1, 2):
        raise ValueError(f"--dimensions {dimensions} is not allowed; 1 or 2")
    options |= {"split": split, "device": find_machine(device).device}
    if images is not None:
        options["images"] = images
    results, left_out = finished(runs)
    chosen = {name: result.path for name, result in table5.named(results).items()}
    if directions == "plane":
        landscapes, files = compare_landscapes.through(chosen, out, **options)
    else:
        options |= {"kind": directions, "dimensions": dimensions, "radius": radius, "seed": seed}
        landscapes, files = compare_landscapes.compare(chosen, out, **options)
    holes = sum(each.holes for each in landscapes.values())
    taken = max(each.setting["images"] for each in landscapes.values())
    lines = [f"loss over {_sample(taken, split, images, compare_landscapes.IMAGES)}"]
    return [*map(str, files), *lines, *([f"{holes} points have no finite loss"] if holes else []), *left_out]


def finished(paths: Sequence[Path]) -> tuple[list[Result], list[str]]:
    """Return the finished runs behind these paths, and a problem for each other run; an error if none is finished."""
    results, problems = read_runs(folder.path for folder in find_runs(paths))
    unfinished = [result.path for result in results if result.fingerprint is None]
    problems += [f"{path} is left out: it is not finished; run its command again to resume it" for path in unfinished]
    done = [result for result in results if result.fingerprint is not None]
    if not done:
        raise RunError(f"there is no finished run: {'; '.join(problems)}")
    return done, problems


@contextmanager
def arithmetic_errors(path: Path) -> Iterator[None]:
    """Name the run whose numbers cannot be computed."""
    try:
        yield
    except ArithmeticError as error:
        raise RunError(f"{path}: {error}") from error


def _sample(taken: int, split: str, asked: int | None, most: int) -> str:
    """Return how many images were used, and how to use others."""
    return f"{taken:,} images of {split}{f' (at most {most}; --images takes more or fewer)' if asked is None else ''}"


def _noisy(recipe: Recipe) -> bool:
    """Return whether every pass of a step drew its own dropout masks."""
    drops = recipe.dropout > 0 or any("dropout" in name and value for name, value in recipe.method_settings.items())
    return drops and not recipe.optimizer_settings.get("shared_noise", False)


def _tracked(run: Path) -> list[Record]:
    """Return the records of a run that was tracked; none if they are too few for a summary."""
    file = run / TRACKING
    records = tracked.read(file) if file.exists() else []
    return records if sum(record.ratio is not None for record in records) >= tracked.FEWEST else []


def _beside(plot: Path, name: str) -> Path:
    """Return curvature-training-seed-1.png for curvature.png and "seed 1"."""
    words = "".join(letter if letter.isalnum() else " " for letter in name).split()
    return plot.with_name(f"{plot.stem}-training-{'-'.join(words)}{plot.suffix}")
