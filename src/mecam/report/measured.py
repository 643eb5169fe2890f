"""What instruments may have left in a run's folder, beside what training wrote.

curvature.json, the curvature of the selected weights by finite differences, one entry of each list a rho:

    {"split": "art in", "images": 448, "loss": 0.389, "gradient_norm": 0.81, "largest_eigenvalue": 12.3,
     "rho": [0.01, 0.05], "numerator": [0.0001, 0.0021], "curvature": [0.00006, 0.0013]}

`numerator` is f(θ+δ) + f(θ−δ) − 2 f(θ), signed; `curvature` is its size over ‖∇f‖² + 1. `images` and
`largest_eigenvalue` may be left out or null; further entries do no harm.

landscape.json, the loss over a plane through the selected weights, a row for each y and a column for each x:

    {"split": "art in", "directions": "random, filter-normalised", "x": [-1, 0, 1], "y": [-1, 0, 1],
     "loss": [[2.1, 1.0, 2.2], [1.1, 0.4, 1.2], [2.0, 0.9, null]]}

null is a hole: a loss that is not finite. `directions` may be left out. Runs that have the same split and directions
are drawn on one colour scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mecam.report.curves import Number, short
from mecam.runs import RunError, read_json

CURVATURE, LANDSCAPE = "curvature.json", "landscape.json"
SIDE = 61  # points a side of a surface on the page


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
    """None where there is none; a file of another shape is a ValueError that names it."""
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
    """None where there is none; a file of another shape is a ValueError that names it."""
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
    try:
        values = read_json(file)
    except RunError as error:
        raise ValueError(str(error)) from error
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
