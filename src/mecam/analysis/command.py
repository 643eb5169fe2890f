"""What `mecam curvature`, `spectrum` and `landscape` do, in words of the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from mecam.analysis import compare_landscapes
from mecam.analysis import curvature as curvatures
from mecam.analysis import spectrum as spectra
from mecam.analysis.runs import objective_of
from mecam.recipe import Recipe
from mecam.runs import write_atomic
from mecam.serving import find_run
from mecam.training.machine import find_machine

CURVATURE = "curvature.json"  # in a run's folder, for the page


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
    """The table, or JSON; what is found also goes to each run's folder, for the page."""
    if form not in ("terminal", "json"):
        raise ValueError(f"format {form!r} is not known; terminal and json are")
    try:
        wanted = [float(radius) for radius in radii.split(",")]
    except ValueError:
        raise ValueError(f"--radii {radii} is not a list of numbers such as 0.05,0.1") from None
    found, exacts = {}, {}
    for name, path in named(runs).items():
        objective = objective_of(
            path,
            split,  # type: ignore[arg-type]
            limit=images,
            dtype=torch.float64 if double else torch.float32,
            device=find_machine(device).device,
        )
        found[name] = curvatures.curvature(objective, wanted, sharpness=sharpness)
        if exact:
            exacts[name] = curvatures.exact(objective)
        content = json.dumps(found[name].to_dict(exacts.get(name)), indent=2)
        write_atomic(find_run(path).path / CURVATURE, content.encode())
    if plot is not None:
        curvatures.plot(found, plot)
    if form == "json":
        return json.dumps({name: each.to_dict(exacts.get(name)) for name, each in found.items()}, indent=2)
    return curvatures.table(found, exacts or None)


def spectrum(
    run: Path, *, split: str, top: int, draws: int, density: Path | None, images: int | None, device: str
) -> str:
    """Eigenvalues and trace in words; the density as a figure."""
    objective = objective_of(run, split, limit=images, device=find_machine(device).device)  # type: ignore[arg-type]
    values = spectra.eigenvalues(objective, top)
    found = spectra.trace(objective, draws=draws)
    lines = [
        f"eigenvalues of the largest magnitude: {', '.join(f'{value:.4g}' for value in values.values)}",
        f"trace: {found.estimate:.4g} ± {found.standard_error:.2g} (standard error over {draws} draws)",
    ]
    if density is not None:
        lines.append(f"density: {spectra.plot(spectra.density(objective), density)}")
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
            holes = plane.holes
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
    return [*map(str, files), *([f"{holes} points have no finite loss"] if holes else [])]


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
def progress() -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar for each run on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    tasks: dict[str, Any] = {}
    with Progress(console=Console(stderr=True)) as bar:

        def tell(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done)

        yield tell
