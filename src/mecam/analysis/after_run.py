"""Measure a run right after its training: `mecam bench --measure curvature,eigenvalue,landscape`.

Measurements go to measurements.json in the run's folder, the landscape and the curvature also to the files that
`mecam report` reads. Modules that need torch are imported where used.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mecam.benchmark.jobs import AfterRun
from mecam.benchmark.records_file import MEASUREMENTS, read_measurements
from mecam.near import hint
from mecam.runs import RunFolder, write_atomic

if TYPE_CHECKING:
    from mecam.analysis.objective import Objective
    from mecam.data.domains import DomainSet

# about a fifth of the time of 5,000 steps of ResNet-50 on a GPU
CURVATURE_IMAGES, EIGENVALUE_IMAGES, LANDSCAPE_IMAGES = 1024, 512, 256
# images per batch on a GPU; a second backward takes several times the memory of a first
BATCH, EIGENVALUE_BATCH = 256, 64
GRIDS: Mapping[str, tuple[Literal[1, 2], int]] = {"line": (1, 21), "plane": (2, 11)}  # dimensions, points per axis
RADIUS = 0.25  # there the loss of a fine-tuned network is 10 to 40 times that at its weights


def measure_names(words: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names in a string or list such as "curvature,eigenvalue"; refuse others."""
    names = [word.strip() for word in words.split(",")] if isinstance(words, str) else words
    for name in names:
        if name not in MEASURES:
            raise ValueError(f"--measure: there is no {name!r}; {hint(name, MEASURES)}")
    return tuple(names)


def after_run(names: Sequence[str]) -> AfterRun | None:
    """Return the function that an engine calls to measure a run; None without names."""
    return partial(_measure, tuple(names)) if names else None


def _measure(names: Sequence[str], run: RunFolder, data: DomainSet, device: str) -> None:
    """Measure what the run in this folder lacks. Values that are not finite are stored as an error."""
    known = read_measurements(run.path)
    for name in (name for name in names if name not in known):
        start = time.monotonic()
        try:
            values = MEASURES[name](run.path, data, device)
        except ArithmeticError as error:
            values = {"error": str(error)}
        known[name] = {**values, "seconds": round(time.monotonic() - start, 1)}
        run.writer.write(run.path / MEASUREMENTS, json.dumps(known).encode())


def _curvature(path: Path, data: DomainSet, device: str) -> dict[str, Any]:
    """Measure the curvature C at the paper's radii on source training and validation images."""
    from mecam.analysis import curvature
    from mecam.analysis.measure import CURVATURE
    from mecam.recipe import recipe_of

    splits = ("train", "validation") if recipe_of(path).holdout else ("train",)
    measured = {
        split: curvature.curvature(_objective(path, split, data, device, CURVATURE_IMAGES, BATCH)).to_dict()
        for split in splits
    }
    write_atomic(path / CURVATURE, json.dumps(measured["train"], indent=2).encode())
    return measured


def _eigenvalue(path: Path, data: DomainSet, device: str) -> dict[str, Any]:
    """Measure the Hessian's eigenvalue of largest magnitude on source training images."""
    from mecam.analysis import spectrum

    largest = spectrum.largest(_objective(path, "train", data, device, EIGENVALUE_IMAGES, EIGENVALUE_BATCH))
    return {
        "split": largest.data,
        "images": largest.samples,
        "largest_eigenvalue": largest.values[0],
        "tolerance": largest.tolerance,
        "products": largest.products,
    }


def _landscape(path: Path, data: DomainSet, device: str) -> dict[str, Any]:
    """Measure the loss along random directions that all runs share, each scaled by the run's own filters."""
    from mecam.analysis.compare_landscapes import around

    common: dict[str, Any] = {"images": LANDSCAPE_IMAGES, "radius": RADIUS, "device": device, "data": data}
    return {
        name: around(path, dimensions=dimensions, steps=steps, **common)[0].to_dict()
        for name, (dimensions, steps) in GRIDS.items()
    }


def _objective(path: Path, split: str, data: DomainSet, device: str, images: int, batch: int) -> Objective:
    from mecam.analysis.runs import objective_of

    size = None if device == "cpu" else batch
    objective = objective_of(path, split, limit=images, device=device, batch=size, data=data)  # type: ignore[arg-type]
    objective.batches = list(objective.batches)  # on the device for all passes
    return objective


MEASURES: Mapping[str, Callable[[Path, DomainSet, str], dict[str, Any]]] = {
    "curvature": _curvature,
    "eigenvalue": _eigenvalue,
    "landscape": _landscape,
}
