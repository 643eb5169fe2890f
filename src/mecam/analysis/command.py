"""What `mecam curvature`, `spectrum` and `landscape` do, in words of the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mecam.analysis import compare_landscapes, plot_tracking, tracking
from mecam.analysis import curvature as curvatures
from mecam.analysis import spectrum as spectra
from mecam.analysis._figure import check_ending
from mecam.analysis.runs import objective_of, virtual_domain_of
from mecam.recipe import Recipe
from mecam.runs import RunError, write_atomic
from mecam.serving import find_run
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
    form: str = "terminal",
    plot: Path | None = None,
    device: str = "auto",
) -> str:
    """The table, or JSON; what is found also goes to each run's folder, for the page.

    Of a run that was tracked while it was trained, also what its records say; with `plot` their figure beside it.
    """
    if form not in ("terminal", "json"):
        raise ValueError(f"format {form!r} is not known; terminal and json are")
    try:
        wanted = [float(radius) for radius in radii.split(",")]
    except ValueError:
        raise ValueError(f"--radii {radii} is not a list of numbers such as 0.05,0.1") from None
    if plot is not None:
        check_ending(plot)
    chosen = named(runs)
    found, exacts = {}, {}
    with progress() as tell:
        for name, path in chosen.items():
            objective = objective_of(
                path,
                split,  # type: ignore[arg-type]
                limit=images,
                dtype=torch.float64 if double else torch.float32,
                device=find_machine(device).device,
                mixed=sharpness,
            )
            domain = virtual_domain_of(path, objective) if sharpness else None
            with of_run(path):
                found[name] = curvatures.curvature(
                    objective,
                    wanted,
                    virtual_domain=domain,
                    sharpness=sharpness,
                    progress=partial(tell, name),
                )
                if exact:
                    exacts[name] = curvatures.exact(objective, progress=_products(tell, f"{name}, eigenvalue"))
            measured = json.dumps(found[name].to_dict(exacts.get(name)), indent=2)
            write_atomic(find_run(path).path / CURVATURE, measured.encode())
    tracked = {name: records for name, path in chosen.items() if (records := _tracked(path))}
    files: list[Path] = []
    if plot is not None:
        files.append(curvatures.plot(found, plot))
        files += [plot_tracking.plot(records, _beside(plot, name)) for name, records in tracked.items()]
    summaries = {name: tracking.summary(records) for name, records in tracked.items()}
    if form == "json":
        content = {name: each.to_dict(exacts.get(name)) for name, each in found.items()}
        for name, summary in summaries.items():
            content[name]["training"] = asdict(summary)
        return json.dumps(content, indent=2)
    trained = [f"{name}, while it was trained\n{summary.text()}" for name, summary in summaries.items()]
    written = ["\n".join(map(str, files))] if files else []
    return "\n\n".join([curvatures.table(found, exacts or None), *trained, *written])


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
    """The files that were written, and how many points were not finite."""
    if dimensions not in (1, 2):
        raise ValueError(f"--dimensions {dimensions} is not allowed; 1 or 2")
    common: dict[str, Any] = {"split": split, "steps": steps, "device": find_machine(device).device}
    if images is not None:
        common["images"] = images
    with progress() as tell:
        if directions == "plane":
            plane, files = compare_landscapes.through(named(runs), out, progress=tell, **common)
            holes, taken = plane.holes, plane.setting["images"]
        else:
            found, files = compare_landscapes.compare(
                named(runs),
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
    return [*map(str, files), f"loss over {sample}", *([f"{holes} points have no finite loss"] if holes else [])]


def named(runs: Sequence[Path]) -> Mapping[str, Path]:
    """Short names for runs: in what they differ."""
    recipes = {path: Recipe(**find_run(path).read_run()["recipe"]) for path in runs}
    entries = ("data", "target", "method", "optimizer", "averaging", "seed")
    differing = [e for e in entries if len({str(getattr(recipe, e)) for recipe in recipes.values()}) > 1]
    names: dict[str, Path] = {}
    for path, recipe in recipes.items():
        name = " ".join(f"seed {recipe.seed}" if e == "seed" else str(getattr(recipe, e)) for e in differing)
        name = name or recipe.optimizer
        names[name if name not in names else find_run(path).path.name] = path
    return names


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


def _tracked(path: Path) -> list[tracking.Record]:
    """The records of a run that was tracked; none if they are too few to say anything."""
    file = find_run(path).path / TRACKING
    records = tracking.read(file) if file.exists() else []
    return records if sum(record.ratio is not None for record in records) >= tracking.FEWEST else []


def _beside(plot: Path, name: str) -> Path:
    """curvature.png and "seed 1" to curvature-training-seed-1.png."""
    return plot.with_name(f"{plot.stem}-training-{name.replace(' ', '-')}{plot.suffix}")
