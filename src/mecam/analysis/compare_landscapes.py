"""The landscapes of finished runs: what `mecam landscape` does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, cast

import torch

from mecam.analysis import plot_landscape
from mecam.analysis.directions import plane, random_directions
from mecam.analysis.landscape import Landscape, landscape
from mecam.analysis.runs import Part, objective_of
from mecam.analysis.spectrum import eigenpairs
from mecam.data.domains import DomainSet
from mecam.runs import find_run
from mecam.runs.atomic import make_folder

# a fixed draw of a split's images: with 384 of them 51 x 51 points of resnet8 took 2 minutes 41 seconds on two cores
IMAGES = 384
BATCH = 128
PAGE = "landscape.json"  # in a run's folder, for the page
Kind = Literal["random", "eigenvectors"]
Progress = Callable[[str, int, int | None], None]  # of what, how much is done, of how much if that is known


def compare(
    runs: Mapping[str, Path],
    out: Path,
    *,
    kind: Kind = "random",
    dimensions: Literal[1, 2] = 2,
    split: Part = "train",
    images: int | None = IMAGES,
    steps: int = 51,
    radius: float = 1.0,
    seed: int = 0,
    device: torch.device | str = "cpu",
    data: DomainSet | None = None,
    progress: Progress | None = None,
) -> tuple[dict[str, Landscape], list[Path]]:
    """The landscape around each run, and the files that were written: figures, then raw grids.

    The raw grid and, for planes, landscape.json go to each run's folder, the figures to `out`. Random directions are
    the same for all runs, each scaled by its own filters; eigenvectors, those of the largest eigenvalues, are each
    run's own, and of length 1. `data` is the runs' data, if it is open already.
    """
    asked: dict[str, Any] = {
        "kind": kind, "dimensions": dimensions, "split": split, "images": images, "steps": steps, "radius": radius,
        "seed": seed, "device": device, "data": data,
    }  # fmt: skip
    found, raw = {}, []
    for name, path in runs.items():
        found[name], file = around(path, name=name, progress=progress, **asked)
        raw.append(file)
    make_folder(out)
    return found, [*plot_landscape.plot(found, out / "landscape"), *raw]


def around(
    path: Path,
    *,
    name: str = "",
    kind: Kind = "random",
    dimensions: Literal[1, 2] = 2,
    split: Part = "train",
    images: int | None = IMAGES,
    steps: int = 51,
    radius: float = 1.0,
    seed: int = 0,
    device: torch.device | str = "cpu",
    data: DomainSet | None = None,
    progress: Progress | None = None,
    at_once: int | None = None,
) -> tuple[Landscape, Path]:
    """The landscape around one run, and the file of its raw grid; as `compare`, without figures.

    Landscapes of several runs are comparable if all other arguments agree. `at_once`: see `landscape`.
    """
    grid = _steps(steps, radius)
    names = {"random": f"random, filter-normalised, seed {seed}", "eigenvectors": "eigenvectors of the Hessian"}
    if kind not in names:
        raise ValueError(
            f"there are no directions {kind!r}; there are {', '.join(names)}, and plane through three runs"
        )
    folder = find_run(path).path
    objective = objective_of(folder, split, limit=images, device=device, batch=BATCH, data=data)
    if images is not None:
        objective.batches = list(objective.batches)  # ready on the device for all points
    if kind == "random":
        generator = torch.Generator().manual_seed(seed)
        directions = random_directions(objective.parameters, dimensions, generator)
    else:
        found_so_far = _counted(progress, f"{name}, eigenvectors")
        directions = eigenpairs(objective, dimensions, end="highest", seed=seed, progress=found_so_far)[1]
    raw = folder / f"landscape-{_digest(kind, dimensions, split, images, steps, radius, seed)}.npz"
    found = landscape(
        objective,
        directions,
        grid,
        grid if dimensions == 2 else None,
        file=raw,
        setting={"split": split, "directions": names[kind]},
        progress=_named(progress, name),
        at_once=at_once,
    )
    if dimensions == 2:
        found.write_json(folder / PAGE)
    return found, raw


def through(
    runs: Mapping[str, Path],
    out: Path,
    *,
    split: Part = "train",
    images: int | None = IMAGES,
    steps: int = 51,
    device: torch.device | str = "cpu",
    data: DomainSet | None = None,
    progress: Progress | None = None,
) -> tuple[Landscape, list[Path]]:
    """The plane through three runs, on the images of the first; everything goes to `out`."""
    if len(runs) != 3:
        raise ValueError(f"a plane goes through three runs; {len(runs)} were given")
    objectives = [
        objective_of(folder, split, limit=images, device=device, batch=BATCH, data=data) for folder in runs.values()
    ]
    found = plane(*(objective.model for objective in objectives))
    x, y = found.grid(steps)
    make_folder(out)
    name = f"plane-{_digest(*map(str, runs.values()), split, images, steps)}"
    surface = landscape(
        objectives[0],
        found.axes,
        x,
        y,
        buffers=found.buffers,
        file=out / f"{name}.npz",
        setting={"split": split, "directions": "plane through " + ", ".join(runs), "points": found.points},
        progress=_named(progress, "plane"),
    )
    marks = dict(zip(runs, found.points, strict=True))
    return surface, [*plot_landscape.plot({"plane": surface}, out / name, marks=marks), out / f"{name}.npz"]


def _steps(steps: int, radius: float) -> list[float]:
    if steps < 2 or not radius > 0:
        raise ValueError(f"steps={steps} and radius={radius:g}; at least 2 steps and a positive radius are needed")
    return cast("list[float]", torch.linspace(-radius, radius, steps, dtype=torch.float64).tolist())


def _digest(*values: Any) -> str:
    """A short name for a setting, so that another setting has another file."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:8]


def _named(progress: Progress | None, name: str) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, points: progress(name, done, points)


def _counted(progress: Progress | None, name: str) -> Callable[[int], None] | None:
    return None if progress is None else lambda done: progress(name, done, None)
