"""Compute the loss over a line or a plane through the weights, on a grid of points.

    x, y = random_directions(objective.parameters, 2, torch.Generator().manual_seed(0))
    grid = landscape(objective, [x, y], STEPS, STEPS, file="art.npz", setting={"directions": "random, seed 0"})
    grid.loss[row, column]     # f(θ + x[column] first + y[row] second); NaN where it is not finite

With a file the grid is kept there as it fills, and a second call resumes it. The file is a plain .npz (no pickle) with
x, y, loss, done and setting, which is JSON.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call

from mecam.analysis.directions import coordinates, is_variance
from mecam.analysis.objective import Direction, Objective
from mecam.progress import Event, Progress, silent
from mecam.runs import RunError, write_atomic
from mecam.storage.files import open_plain

STEPS = tuple(round(-1 + 0.04 * step, 2) for step in range(51))  # from -1 to 1, the weights in the middle
MOST = 64  # points for which a batch is loaded once
WRITE_EVERY = 5.0  # seconds between writes of the file, about


@dataclass(frozen=True, eq=False)
class Landscape:
    """f on a grid; a line is a grid of one row."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    loss: NDArray[np.float64]  # a row for each y, a column for each x; NaN: not finite, or not computed yet
    setting: Mapping[str, Any] = field(default_factory=dict)  # how it was computed, and for which function

    @property
    def holes(self) -> int:
        """Points where the loss is not finite."""
        return int(np.isnan(self.loss).sum())

    def to_dict(self) -> dict[str, Any]:
        """Return the grid for JSON; a hole is None."""
        return {
            "split": str(self.setting.get("split", "")),
            "directions": str(self.setting.get("directions", "")),
            "images": self.setting.get("images"),
            "x": list(self.x),
            "y": list(self.y),
            "loss": [[None if math.isnan(value) else value for value in row] for row in self.loss.tolist()],
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read what `to_dict` returned."""
        setting = {name: content[name] for name in ("split", "directions", "images")}
        return cls(tuple(content["x"]), tuple(content["y"]), np.array(content["loss"], dtype=np.float64), setting)


def landscape(
    objective: Objective,
    directions: Sequence[Direction | Mapping[str, Tensor]],
    x: Sequence[float] = STEPS,
    y: Sequence[float] | None = None,
    *,
    file: Path | str | None = None,
    setting: Mapping[str, Any] | None = None,
    progress: Progress = silent,
) -> Landscape:
    """Compute f(θ + x first + y second) for every x and y; with one direction f(θ + x first).

    Args:
        directions: tensors like the parameters, or by name with buffers (`Plane.axes`); buffers not named stay.
        file: an .npz to keep the grid in. One of another function, grid or setting is refused.
        setting: a description for the file, as JSON; "split" and "directions" are shown on the page.
    """
    if len(directions) not in (1, 2) or (len(directions) == 2) != (y is not None):
        raise ValueError("a line takes one direction and x; a plane takes two directions, x and y")
    columns, rows = _axis("x", x), (0.0,) if y is None else _axis("y", y)
    points = _Points(objective, directions)
    full = {**(setting or {}), "images": objective.count, "function": _fingerprint(objective, points)}
    full = json.loads(json.dumps(full))  # as it will be read back
    path = None if file is None else Path(file)
    grid, done = _start(path, Landscape(columns, rows, np.full((len(rows), len(columns)), math.nan), full))
    missing = [(row, column) for row, column in np.argwhere(~done).tolist()]

    def report() -> None:
        progress(Event("landscape", int(done.sum()), done.size, "points"))

    report()
    together, written = 1, time.monotonic()
    try:
        while missing:
            some, missing = missing[:together], missing[together:]
            started = time.monotonic()
            values = points.values([(columns[column], rows[row]) for row, column in some])
            for at, value in zip(some, values, strict=True):
                grid.loss[at], done[at] = value if math.isfinite(value) else math.nan, True
            report()
            now = time.monotonic()
            if now - started < WRITE_EVERY / 4:
                together = min(2 * together, MOST)
            if path is not None and now - written > WRITE_EVERY:
                _write(path, grid, done)
                written = now
    finally:  # also when the call is interrupted
        if path is not None:
            _write(path, grid, done)
    return grid


def read(file: Path | str) -> Landscape:
    """Read a grid from a file; points that were not reached yet are holes."""
    return _read(Path(file))[0]


def _axis(name: str, values: Sequence[float]) -> tuple[float, ...]:
    axis = tuple(map(float, values))
    if not axis or not all(map(math.isfinite, axis)) or any(b <= a for a, b in pairwise(axis)):
        raise ValueError(f"{name} must be increasing finite numbers, at least one")
    return axis


def _start(path: Path | None, empty: Landscape) -> tuple[Landscape, NDArray[np.bool_]]:
    """Return the grid as far as it was written, and which of its points are done."""
    if path is None or not path.exists():
        return empty, np.zeros(empty.loss.shape, dtype=bool)
    old, done = _read(path)
    other = [name for name in {**old.setting, **empty.setting} if old.setting.get(name) != empty.setting.get(name)]
    if (old.x, old.y) != (empty.x, empty.y):
        other.append("grid")
    if other:
        raise RunError(f"{path} holds a landscape with another {', '.join(other)}; give another file, or remove it")
    return old, done


def _write(path: Path, grid: Landscape, done: NDArray[np.bool_]) -> None:
    packed, setting = io.BytesIO(), np.array(json.dumps(grid.setting))
    np.savez(packed, x=np.array(grid.x), y=np.array(grid.y), loss=grid.loss, done=done, setting=setting)
    write_atomic(path, packed.getvalue())


def _read(path: Path) -> tuple[Landscape, NDArray[np.bool_]]:
    try:
        with open(path, "rb", opener=open_plain) as file, zipfile.ZipFile(file) as archive:
            x, y, loss, done = (_array(archive, name) for name in ("x", "y", "loss", "done"))
            setting = json.loads(str(_array(archive, "setting")))
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile) as error:
        raise RunError(f"{path} is not a landscape that can be read: {error}") from error
    if loss.shape != (len(y), len(x)) or done.shape != loss.shape or not isinstance(setting, dict):
        raise RunError(f"{path} is not a landscape that can be read: its arrays do not fit each other")
    return Landscape(tuple(x.tolist()), tuple(y.tolist()), loss, setting), done


def _array(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """Read an array of an .npz that is no longer than the file: compressed ones are refused."""
    entry = archive.getinfo(f"{name}.npy")
    if entry.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed, which is never written")
    with archive.open(entry) as stream:
        array: NDArray[Any] = np.load(stream, allow_pickle=False)
    return array


def _fingerprint(objective: Objective, points: _Points) -> str:
    """Return a digest of the weights, the directions and the data: what the numbers depend on."""
    digest = hashlib.sha256()
    batches = (tensor for batch in objective.batches for tensor in batch)
    directions = (part for axis in points.axes for part in axis)
    for tensor in chain(objective.model.state_dict().values(), directions, batches):
        digest.update(repr((tuple(tensor.shape), tensor.dtype)).encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class _Points:
    """f(θ + x first + y second), for the model in eval mode. Each batch is loaded once for all points."""

    def __init__(self, objective: Objective, directions: Sequence[Direction | Mapping[str, Tensor]]) -> None:
        self.objective = objective
        origin = coordinates(objective.model)
        trained = [name for name, parameter in objective.model.named_parameters() if parameter.requires_grad]
        axes = [axis if isinstance(axis, Mapping) else dict(zip(trained, axis, strict=True)) for axis in directions]
        self.names = list(axes[0])
        self.origin = [origin[name] for name in self.names]
        self.axes = [[axis[name].detach() for name in self.names] for axis in axes]
        for axis in self.axes:
            for name, part, weight in zip(self.names, axis, self.origin, strict=True):
                if part.shape != weight.shape:
                    raise ValueError(
                        f"a direction has the shape {tuple(part.shape)} at {name}, which is {tuple(weight.shape)}"
                    )

    def values(self, points: Sequence[tuple[float, float]]) -> list[float]:
        """Return f at each of the points."""
        objective = self.objective
        total = torch.zeros(len(points), dtype=torch.float64, device=objective.device)
        with objective.studied(), torch.inference_mode():
            for inputs, targets in objective:
                for place, point in enumerate(points):
                    weights = dict(zip(self.names, self._weights(point), strict=True))
                    loss = objective.loss(functional_call(objective.model, weights, (inputs,)), targets)
                    total[place] += loss.double() * len(targets)
        return (total / objective.count).tolist()

    def _weights(self, point: tuple[float, float]) -> list[Tensor]:
        weights = self.origin
        for axis, far in zip(self.axes, point, strict=False):
            weights = list(torch._foreach_add(weights, axis, alpha=far))
        return [weight.exp() if is_variance(name) else weight for name, weight in zip(self.names, weights, strict=True)]
