"""What `mecam curvature`, `spectrum` and `landscape` do, in words of the command line."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mecam.analysis import compare_landscapes, plot_tracking, table5, tracking
from mecam.analysis import curvature as curvatures
from mecam.analysis import spectrum as spectra
from mecam.analysis._figure import check_ending
from mecam.analysis.runs import objective_of, virtual_domain_of
from mecam.benchmark.results import Result, read_runs
from mecam.recipe import Recipe
from mecam.runs import RunError, find_runs, write_atomic
from mecam.training.machine import find_machine

CURVATURE = "curvature.json"  # in a run's folder, for the page
TRACKING = "tracking.jsonl"  # there too, of a run that was trained with track=k
# behind a spectrum, if nothing is said: a product takes 1.6 ms of one core an image (resnet8), and with a density there
# are 130 of them
SPECTRUM_IMAGES = 512
STEPS, REPEATS = 30, 3  # of a density
Tell = Callable[[str, int, int | None], None]  # what is done, how much of it, of how much if that is known


def curvature(
    runs: Sequence[Path],
    *,
    split: str = "train",
    radii: str = "0.01,0.05,0.1,0.2,0.5",
    exact: bool = False,
    sharpness: bool = False,
    images: int | None = None,
    double: bool = False,
    compare: str | None = None,
    per_run: bool = False,
    form: str = "terminal",
    plot: Path | None = None,
    device: str = "auto",
) -> str:
    """Measure runs and return the table, or JSON; each run's curvature also goes to its folder, for the page.

    Runs that were tracked while training get a summary of their records; with `plot`, also a figure of them.
    """
    if form not in ("terminal", "json"):
        raise ValueError(f"format {form!r} is not known; terminal and json are")
    if compare not in (None, "paper"):
        raise ValueError(f"compare={compare!r} is not supported; use 'paper'")
    try:
        wanted = [float(radius) for radius in radii.split(",")]
    except ValueError:
        raise ValueError(f"--radii {radii} is not a list of numbers such as 0.05,0.1") from None
    if plot is not None:
        check_ending(plot)
    results, left_out = finished(runs)
    chosen = _named(results)
    options = {
        "limit": images,
        "dtype": torch.float64 if double else torch.float32,
        "device": find_machine(device).device,
    }
    measured, failed = _measured(chosen, split, wanted, exact, sharpness, options)
    rows = (table5.single if per_run else table5.grouped)(measured, compare=compare == "paper")
    tracked = {name: records for name, result in chosen.items() if (records := _tracked(result.path))}
    summaries = {
        name: tracking.summary(records, noisy=_noisy(chosen[name].recipe)) for name, records in tracked.items()
    }
    files: list[Path] = []
    if plot is not None:
        files.append(curvatures.plot({name: row.runs for name, row in rows.items()}, plot))
        files += [plot_tracking.plot(records, _beside(plot, name)) for name, records in tracked.items()]
    notes = [*table5.notes(rows), *left_out, *failed]
    if form == "json":
        return json.dumps(_content(measured, rows, summaries, notes), indent=2)
    trained = [f"{name}, while training\n{summary.text()}" for name, summary in summaries.items()]
    blocks = [table5.table(rows, stars=table5.incomparable(rows) is None), "\n".join(notes), *trained]
    return "\n\n".join(block for block in [*blocks, "\n".join(map(str, files))] if block)


def _measured(
    runs: Mapping[str, Result],
    split: str,
    radii: Sequence[float],
    exact: bool,
    sharpness: bool,
    options: Mapping[str, Any],
) -> tuple[list[table5.Measured], list[str]]:
    """Measure each run and write its curvature.json; return what is wrong with those that cannot be measured."""
    measured: list[table5.Measured] = []
    errors: dict[str, RunError] = {}
    with progress() as tell:
        for name, result in runs.items():
            try:
                objective = objective_of(result.path, split, mixed=sharpness, **options)  # type: ignore[arg-type]
                domain = virtual_domain_of(result.path, objective) if sharpness else None
                with of_run(result.path):
                    found = curvatures.curvature(
                        objective, radii, virtual_domain=domain, sharpness=sharpness, progress=partial(tell, name)
                    )
                    counted = _products(tell, f"{name}, eigenvalue")
                    eigenvalue = curvatures.exact(objective, progress=counted) if exact else None
            except RunError as error:
                errors[name] = error
                continue
            write_atomic(result.path / CURVATURE, json.dumps(found.to_dict(eigenvalue), indent=2).encode())
            measured.append(table5.Measured(result, found, eigenvalue))
    if not measured:
        raise next(iter(errors.values()))
    return measured, [f"{name} is left out: {error}" for name, error in errors.items()]


def spectrum(
    run: Path,
    *,
    split: str,
    top: int,
    draws: int,
    density: Path | None,
    images: int | None,
    device: str,
    steps: int = STEPS,
    repeats: int = REPEATS,
) -> str:
    """Eigenvalues and trace in words; the density as a figure."""
    if density is not None:
        check_ending(density)
    objective = objective_of(
        run,
        split,  # type: ignore[arg-type]
        limit=SPECTRUM_IMAGES if images is None else images,
        device=find_machine(device).device,
    )
    with progress() as tell, of_run(run):
        values = spectra.eigenvalues(objective, top, progress=_products(tell, "eigenvalues"))
        found = spectra.trace(objective, draws=draws, progress=_products(tell, "trace", draws))
        lines = [
            f"Hessian of {values.parameters:,} weights over {_sample(values.samples, split, images, SPECTRUM_IMAGES)}",
            f"eigenvalues of the largest magnitude: {', '.join(f'{value:.4g}' for value in values.values)} "
            f"(residuals within {values.tolerance:.1%}, {values.products} products)",
            f"trace: {found.estimate:.4g} ± {found.standard_error:.2g} (standard error over {draws} draws)",
        ]
        if density is not None:
            smooth = spectra.density(
                objective, steps=steps, repeats=repeats, progress=_products(tell, "density", steps * repeats + 1)
            )
            lines.append(f"density: {spectra.plot(smooth, density)} ({repeats} starts of {steps} steps)")
    return "\n".join(lines)


def landscape(
    runs: Sequence[Path],
    out: Path,
    *,
    split: str,
    directions: str,
    dimensions: int,
    steps: int,
    radius: float,
    seed: int,
    images: int | None,
    device: str,
) -> list[str]:
    """Draw the runs; return the files that were written and what to say of them, a line each."""
    if dimensions not in (1, 2):
        raise ValueError(f"--dimensions {dimensions} is not allowed; 1 or 2")
    common: dict[str, Any] = {"split": split, "steps": steps, "device": find_machine(device).device}
    if images is not None:
        common["images"] = images
    results, left_out = finished(runs)
    chosen = table5.named(results)
    with progress() as tell:
        if directions == "plane":
            plane, files = compare_landscapes.through(chosen, out, progress=tell, **common)
            holes, taken = plane.holes, plane.setting["images"]
        else:
            found, files = compare_landscapes.compare(
                chosen,
                out,
                kind=directions,  # type: ignore[arg-type]
                dimensions=dimensions,  # type: ignore[arg-type]
                radius=radius,
                seed=seed,
                progress=tell,
                **common,
            )
            holes = sum(each.holes for each in found.values())
            taken = max(each.setting["images"] for each in found.values())
    sample = _sample(taken, split, images, compare_landscapes.IMAGES)
    lines = [f"loss over {sample}", *([f"{holes} points have no finite loss"] if holes else [])]
    return [*map(str, files), *lines, *left_out]


def finished(paths: Sequence[Path]) -> tuple[list[Result], list[str]]:
    """Return the finished runs behind these paths, and what is wrong with the others; an error if there is none."""
    results, problems = read_runs(folder.path for folder in find_runs(paths))
    unfinished = [result.path for result in results if result.fingerprint is None]
    problems += [f"{path} is left out: it is not finished; run its command again to resume it" for path in unfinished]
    done = [result for result in results if result.fingerprint is not None]
    if not done:
        raise RunError(f"there is no finished run: {'; '.join(problems)}")
    return done, problems


@contextmanager
def of_run(path: Path) -> Iterator[None]:
    """Numbers that cannot be computed are the fault of a run, which is named."""
    try:
        yield
    except ArithmeticError as error:
        raise RunError(f"{path}: {error}") from error


@contextmanager
def progress() -> Iterator[Tell]:
    """A bar for each name on a terminal, with the time left; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import Progress, TimeElapsedColumn

    tasks: dict[str, Any] = {}
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=Console(stderr=True)) as bar:

        def tell(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done, description=name if total else f"{name}, {done} products")

        yield tell


def _sample(taken: int, split: str, asked: int | None, most: int) -> str:
    """How many images were looked at, and that there may be more of them."""
    return f"{taken:,} images of {split}{f' (at most {most}; --images takes more or fewer)' if asked is None else ''}"


def _products(tell: Tell, name: str, total: int | None = None) -> spectra.Progress:
    return lambda done: tell(name, done, total)


def _named(results: Sequence[Result]) -> dict[str, Result]:
    by_path = {result.path: result for result in results}
    return {name: by_path[path] for name, path in table5.named(results).items()}


def _content(
    measured: Sequence[table5.Measured],
    rows: Mapping[str, table5.Row],
    summaries: Mapping[str, tracking.Summary],
    notes: Sequence[str],
) -> dict[str, Any]:
    """Return all numbers, for JSON: by row, and by run."""
    by_path = {one.result.path: one for one in measured}
    smallest = table5.best(rows) if len(rows) > 1 and table5.incomparable(rows) is None else {}
    runs = {}
    for name, result in _named([one.result for one in measured]).items():
        one, recipe = by_path[result.path], result.recipe
        place = {"run": str(result.path), "data": result.data, "target": recipe.target, "seed": recipe.seed}
        summary = summaries.get(name)
        training = {} if summary is None else {"training": summary.to_dict()}
        runs[name] = {**place, **one.found.to_dict(one.exact), **training}
    return {
        "rows": {name: {**row.to_dict(), "best": _marks(row, smallest)} for name, row in rows.items()},
        "runs": runs,
        "notes": list(notes),
    }


def _marks(row: table5.Row, smallest: Mapping[float, float]) -> list[bool]:
    return [row.spread(table5.METRIC, rho).mean == smallest.get(rho, math.nan) for rho in row.radii]


def _noisy(recipe: Recipe) -> bool:
    """Return whether every pass of a step drew its own dropout masks."""
    drops = recipe.dropout > 0 or any("dropout" in name and value for name, value in recipe.method_settings.items())
    return drops and not recipe.optimizer_settings.get("shared_noise", False)


def _tracked(run: Path) -> list[tracking.Record]:
    """Return the records of a run that was tracked; none if they are too few for a summary."""
    file = run / TRACKING
    records = tracking.read(file) if file.exists() else []
    return records if sum(record.ratio is not None for record in records) >= tracking.FEWEST else []


def _beside(plot: Path, name: str) -> Path:
    """Return curvature-training-seed-1.png for curvature.png and "seed 1"."""
    words = "".join(letter if letter.isalnum() else " " for letter in name).split()
    return plot.with_name(f"{plot.stem}-training-{'-'.join(words)}{plot.suffix}")
