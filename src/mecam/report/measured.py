"""Measurements in a run's folder: curvature.json and landscape.json.

curvature.json is the curvature of the selected weights by finite differences; lists have one entry per rho:

    {"split": "art in", "images": 448, "loss": 0.389, "gradient_norm": 0.81, "largest_eigenvalue": 12.3,
     "rho": [0.01, 0.05], "numerator": [0.0001, 0.0021], "curvature": [0.00006, 0.0013]}

`numerator` is f(θ+δ) + f(θ−δ) − 2 f(θ), signed; `curvature` is its size over ‖∇f‖² + 1. `images` and
`largest_eigenvalue` may be absent or null; other entries are ignored.

landscape.json is the loss over a plane through the selected weights, one row per y and one column per x:

    {"split": "art in", "directions": "random, filter-normalised", "x": [-1, 0, 1], "y": [-1, 0, 1],
     "loss": [[2.1, 1.0, 2.2], [1.1, 0.4, 1.2], [2.0, 0.9, null]]}

null is a loss that is not finite. `directions` may be absent. Runs with the same split and directions share one colour
scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mecam.report.curves import short
from mecam.storage.files import read_json

CURVATURE, LANDSCAPE = "curvature.json", "landscape.json"
NUMBERS, LISTS = ("loss", "gradient_norm", "largest_eigenvalue"), ("rho", "numerator", "curvature")
SIDE = 61  # points per side of a surface on the page


Entry = dict[str, Any]


def read_curvature(folder: Path, run: int) -> Entry | None:
    """Return the curvature of the page's run of this number, or None without the file; ValueError if malformed."""
    file = folder / CURVATURE
    if not file.exists():
        return None
    values = read_json(file)
    numbers = {name: short(float(_array(file, values, name, 0))) for name in NUMBERS}
    lists = {name: list(map(short, _array(file, values, name, 1))) for name in LISTS}
    if len(set(map(len, lists.values()))) > 1:
        raise ValueError(f"{file} has lists of unequal length")
    return {"run": run, "split": str(values.get("split", "")), **numbers, **lists}


def read_surface(folder: Path, run: int) -> Entry | None:
    """Return the thinned loss surface of a run, or None without the file; ValueError if malformed."""
    file = folder / LANDSCAPE
    if not file.exists():
        return None
    values = read_json(file)
    x, y, loss = _array(file, values, "x", 1), _array(file, values, "y", 1), _array(file, values, "loss", 2)
    if loss.shape != (len(y), len(x)):
        raise ValueError(f"{file} has a loss grid that does not fit its x and y")
    across, down = -(-len(x) // SIDE), -(-len(y) // SIDE)
    return {
        "run": run,
        "split": str(values.get("split", "")),
        "directions": str(values.get("directions", "")),
        "x": list(map(short, x[::across])),
        "y": list(map(short, y[::down])),
        "loss": [list(map(short, row)) for row in loss[::down, ::across]],
        "holes": int((~np.isfinite(loss)).sum()),
    }


def _array(file: Path, values: Mapping[str, Any], name: str, dimensions: int) -> NDArray[np.float64]:
    """Return an entry as an array; null is NaN."""
    try:
        array = np.array(values.get(name), dtype=float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file} has entries in {name!r} that are not numbers: {error}") from error
    if array.ndim != dimensions:
        raise ValueError(f"{file} has {array.ndim} dimensions in {name!r}; expected {dimensions}")
    return array
