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

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mecam.report.curves import Number, short
from mecam.storage.files import read_json

CURVATURE, LANDSCAPE = "curvature.json", "landscape.json"
SIDE = 61  # points per side of a surface on the page


@dataclass(frozen=True)
class Curvature:
    """A run's curvature.json."""

    run: int  # its place among the page's runs
    split: str
    loss: Number
    gradient_norm: Number
    largest_eigenvalue: Number
    rho: list[Number]
    numerator: list[Number]
    curvature: list[Number]


@dataclass(frozen=True)
class Surface:
    """A run's landscape.json, thinned."""

    run: int
    split: str
    directions: str
    x: list[Number]
    y: list[Number]
    loss: list[list[Number]]
    holes: int


def read_curvature(folder: Path, run: int) -> Curvature | None:
    """Return a run's curvature, or None without the file; raise ValueError for a malformed one."""
    file = folder / CURVATURE
    if not file.exists():
        return None
    values = _values(file, ("split", "loss", "gradient_norm", "rho", "numerator", "curvature"))
    rho, numerator, curvature = (_numbers(file, values[name]) for name in ("rho", "numerator", "curvature"))
    if not len(rho) == len(numerator) == len(curvature):
        raise ValueError(f"{file} has lists of unequal length")
    loss, norm, eigenvalue = (
        _number(file, values.get(name)) for name in ("loss", "gradient_norm", "largest_eigenvalue")
    )
    return Curvature(run, str(values["split"]), loss, norm, eigenvalue, rho, numerator, curvature)


def read_surface(folder: Path, run: int) -> Surface | None:
    """Return a run's loss surface, or None without the file; raise ValueError for a malformed one."""
    file = folder / LANDSCAPE
    if not file.exists():
        return None
    values = _values(file, ("split", "x", "y", "loss"))
    x, y = _numbers(file, values["x"]), _numbers(file, values["y"])
    loss = [_numbers(file, row) for row in _list(file, values["loss"])]
    if len(loss) != len(y) or {len(row) for row in loss} != {len(x)}:
        raise ValueError(f"{file} has a loss grid that does not fit its x and y")
    holes = sum(entry is None for row in loss for entry in row)
    across, down = -(-len(x) // SIDE), -(-len(y) // SIDE)
    thinned = [row[::across] for row in loss[::down]]
    return Surface(run, str(values["split"]), str(values.get("directions", "")), x[::across], y[::down], thinned, holes)


def _values(file: Path, needed: tuple[str, ...]) -> dict[str, Any]:
    values = read_json(file, error=ValueError)
    missing = [name for name in needed if name not in values]
    if missing:
        raise ValueError(f"{file} has no entry {missing[0]!r}")
    return values


def _list(file: Path, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{file} has {value!r} where a list should be")
    return value


def _numbers(file: Path, values: Any) -> list[Number]:
    return [_number(file, value) for value in _list(file, values)]


def _number(file: Path, value: Any) -> Number:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise ValueError(f"{file} has {value!r} where a number should be")
    return short(value)
