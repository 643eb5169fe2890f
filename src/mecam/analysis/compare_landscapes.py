"""Compute and plot the landscapes of finished runs: `mecam landscape`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from mecam.analysis import plot_landscape
from mecam.analysis.directions import plane, random_directions
from mecam.analysis.landscape import Landscape, landscape
from mecam.analysis.runs import Subset, objective_of
from mecam.analysis.spectrum import eigenpairs
from mecam.data.domains import DomainSet
from mecam.progress import Progress, named, silent
from mecam.runs import find_run, write_atomic
from mecam.storage.files import encode_json, make_folder

# a fixed draw of a split's images: with 384 of them 51 x 51 points of resnet8 took 2 minutes 41 seconds on two cores
IMAGES = 384
BATCH = 128
PAGE = "landscape.json"  # in a run's folder, for the page
KINDS = {"random": "random, filter-normalised, seed {}", "eigenvectors": "eigenvectors of the Hessian"}


def compare(runs: Mapping[str, Path], out: Path, **options: Any) -> tuple[dict[str, Landscape], list[Path]]:
    """Compute the landscape around each run; return them and the files: figures in `out`, then raw grids.

    The options are those of `around`.
    """
    computed = {name: around(path, name=name, **options) for name, path in runs.items()}
    landscapes = {name: surface for name, (surface, _) in computed.items()}
    make_folder(out)
    return landscapes, [*plot_landscape.plot(landscapes, out / "landscape"), *(raw for _, raw in computed.values())]


def around(
    path: Path,
    *,
    name: str = "",
    kind: str = "random",
    dimensions: Literal[1, 2] = 2,
    split: Subset = "train",
    images: int | None = IMAGES,
    steps: int = 51,
    radius: float = 1.0,
    seed: int = 0,
    device: torch.device | str = "cpu",
    data: DomainSet | Path | str | None = None,
    progress: Progress = silent,
) -> tuple[Landscape, Path]:
    """Compute the landscape around one run; return it and the file of its raw grid, in the run's folder.

    Landscapes of several runs are comparable if all other arguments agree. Random directions are the same for all runs,
    each scaled by its own filters; eigenvectors, those of the largest eigenvalues, are each run's own, of length 1. A
    plane also goes to landscape.json. `data` is the run's data, if it is open already.
    """
    if steps < 2 or not radius > 0:
        raise ValueError(f"steps={steps} and radius={radius:g}; at least 2 steps and a positive radius are needed")
    if kind not in KINDS:
        raise ValueError(
            f"there are no directions {kind!r}; there are {', '.join(KINDS)}, and plane through three runs"
        )
    grid: list[float] = torch.linspace(-radius, radius, steps, dtype=torch.float64).tolist()
    folder = find_run(path).path
    objective = objective_of(folder, split, limit=images, device=device, batch=BATCH, data=data)
    if images is not None:
        objective.batches = list(objective.batches)  # ready on the device for all points
    if kind == "random":
        directions = random_directions(objective.parameters, dimensions, torch.Generator().manual_seed(seed))
    else:
        directions = eigenpairs(objective, dimensions, end="highest", seed=seed, progress=named(progress, name))[1]
    raw = folder / f"landscape-{_digest(kind, dimensions, split, images, steps, radius, seed)}.npz"
    surface = landscape(
        objective,
        directions,
        grid,
        grid if dimensions == 2 else None,
        file=raw,
        setting={"split": split, "directions": KINDS[kind].format(seed)},
        progress=named(progress, name),
    )
    if dimensions == 2:
        write_atomic(folder / PAGE, encode_json(surface.to_dict()))
    return surface, raw


def through(
    runs: Mapping[str, Path],
    out: Path,
    *,
    split: Subset = "train",
    images: int | None = IMAGES,
    steps: int = 51,
    device: torch.device | str = "cpu",
    data: DomainSet | Path | str | None = None,
    progress: Progress = silent,
) -> tuple[dict[str, Landscape], list[Path]]:
    """Compute the plane through three runs, on the images of the first; everything goes to `out`."""
    if len(runs) != 3:
        raise ValueError(f"a plane needs three runs, got {len(runs)}")
    objectives = [
        objective_of(run, split, limit=images, device=device, batch=BATCH, data=data) for run in runs.values()
    ]
    through_runs = plane(*(objective.model for objective in objectives))
    make_folder(out)
    stem = out / f"plane-{_digest(*map(str, runs.values()), split, images, steps)}"
    raw = stem.with_suffix(".npz")
    surface = landscape(
        objectives[0],
        through_runs.axes,
        *through_runs.grid(steps),
        file=raw,
        setting={"split": split, "directions": "plane through " + ", ".join(runs), "points": through_runs.points},
        progress=named(progress, "plane"),
    )
    landscapes, marks = {"plane": surface}, dict(zip(runs, through_runs.points, strict=True))
    return landscapes, [*plot_landscape.plot(landscapes, stem, marks=marks), raw]


def _digest(*values: Any) -> str:
    """Return a short name for a setting, so that another setting has another file."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:8]
