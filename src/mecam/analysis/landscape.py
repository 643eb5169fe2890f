"""The loss over a line or a plane through the weights, on a grid of points.

    x, y = random_directions(objective.parameters, 2, torch.Generator().manual_seed(0))
    found = landscape(objective, [x, y], STEPS, STEPS, file="art.npz", setting={"directions": "random, seed 0"})
    found.loss[row, column]     # f(θ + x[column] first + y[row] second); NaN where it is not finite

With a file the grid is kept there as it fills, and a second call goes on with it. The file is a plain .npz (no pickle)
with x, y, loss, done and setting, which is JSON.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mecam.analysis._points import Points
from mecam.analysis.objective import Direction, Objective
from mecam.runs.atomic import RunError, encode_json, write_atomic

STEPS = tuple(round(-1 + 0.04 * step, 2) for step in range(51))  # from -1 to 1, the weights in the middle
MOST = 64  # points for which a batch is loaded once
Progress = Callable[[int, int], None]  # points done, points in all


@dataclass(frozen=True, eq=False)
class Landscape:
    """f on a grid; a line is a grid of one row."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    loss: NDArray[np.float64]  # a row for each y, a column for each x; NaN: not finite
    setting: Mapping[str, Any] = field(default_factory=dict)  # what was asked for, and of which function

    @property
    def holes(self) -> int:
        """Points where the loss is not finite."""
        return int(np.isnan(self.loss).sum())

    def to_dict(self) -> dict[str, Any]:
        """For JSON; a hole is None."""
        return {
            "split": str(self.setting.get("split", "")),
            "directions": str(self.setting.get("directions", "")),
            "images": self.setting.get("images"),
            "x": list(self.x),
            "y": list(self.y),
            "loss": [[None if math.isnan(value) else value for value in row] for row in self.loss.tolist()],
        }

    def write_json(self, path: Path | str) -> None:
        """A run's landscape.json, which the page shows."""
        write_atomic(path, encode_json(self.to_dict()))


def landscape(
    objective: Objective,
    directions: Sequence[Direction],
    x: Sequence[float] = STEPS,
    y: Sequence[float] | None = None,
    *,
    buffers: Sequence[Mapping[str, Tensor]] = (),
    file: Path | str | None = None,
    setting: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    at_once: int | None = None,
    every: float = 5.0,
) -> Landscape:
    """f(θ + x first + y second) for every x and y; with one direction f(θ + x first).

    Args:
        buffers: how buffers of the model move along each direction (`Plane.buffers`); those not named stay.
        file: an .npz to keep the grid in. One of another function, grid or setting is refused.
        setting: what JSON can hold and says what this is; "split" and "directions" are shown on the page.
        at_once: points in one pass through the model, by vmap. None: what is fastest on the device.
        every: seconds from one writing of the file to the next, about.
    """
    if len(directions) not in (1, 2) or (len(directions) == 2) != (y is not None):
        raise ValueError("a line takes one direction and x; a plane takes two directions, x and y")
    if at_once is not None and at_once < 1:
        raise ValueError(f"at_once={at_once} is not allowed; it must be at least 1")
    columns, rows = _axis("x", x), (0.0,) if y is None else _axis("y", y)
    points = Points(objective, directions, buffers)
    full = {**(setting or {}), "images": objective.count, "function": _fingerprint(objective, points)}
    full = json.loads(json.dumps(full))  # as it will be read back
    path = None if file is None else Path(file)
    loss, done = _start(path, columns, rows, full)
    missing = [(row, column) for row, column in np.argwhere(~done).tolist()]
    if progress is not None:
        progress(int(done.sum()), done.size)
    if missing and at_once is None:
        at_once = points.fastest()
    together, written = at_once or 1, time.monotonic()
    try:
        while missing:
            some, missing = missing[:together], missing[together:]
            started = time.monotonic()
            values = points.values([(columns[column], rows[row]) for row, column in some], at_once or 1)
            for at, value in zip(some, values, strict=True):
                loss[at], done[at] = value if math.isfinite(value) else math.nan, True
            if progress is not None:
                progress(int(done.sum()), done.size)
            now = time.monotonic()
            if now - started < every / 4:
                together = max(together, min(2 * together, MOST))
            if path is not None and now - written > every:
                _write(path, columns, rows, loss, done, full)
                written = now
    finally:  # also what a call that is interrupted found
        if path is not None:
            _write(path, columns, rows, loss, done, full)
    return Landscape(columns, rows, loss, full)


def read(file: Path | str) -> Landscape:
    """A grid that was kept in a file; points that were not reached yet are holes."""
    x, y, loss, _, setting = _read(Path(file))
    return Landscape(tuple(x.tolist()), tuple(y.tolist()), loss, setting)


def _axis(name: str, values: Sequence[float]) -> tuple[float, ...]:
    found = tuple(map(float, values))
    if not found or not all(map(math.isfinite, found)) or any(b <= a for a, b in pairwise(found)):
        raise ValueError(f"{name} must be finite numbers that rise, at least one")
    return found


def _start(
    path: Path | None, x: tuple[float, ...], y: tuple[float, ...], setting: Mapping[str, Any]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The grid as far as it was kept."""
    if path is None or not path.exists():
        return np.full((len(y), len(x)), math.nan), np.zeros((len(y), len(x)), dtype=bool)
    old_x, old_y, loss, done, old = _read(path)
    other = [name for name in {**old, **setting} if old.get(name) != setting.get(name)]
    if tuple(old_x.tolist()) != x or tuple(old_y.tolist()) != y:
        other.append("grid")
    if other:
        raise RunError(f"{path} holds a landscape with another {', '.join(other)}; give another file, or remove it")
    return loss, done


def _write(
    path: Path,
    x: tuple[float, ...],
    y: tuple[float, ...],
    loss: NDArray[np.float64],
    done: NDArray[np.bool_],
    setting: Mapping[str, Any],
) -> None:
    packed = io.BytesIO()
    np.savez(packed, x=np.array(x), y=np.array(y), loss=loss, done=done, setting=np.array(json.dumps(setting)))
    write_atomic(path, packed.getvalue())


def _read(
    path: Path,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_], dict[str, Any]]:
    try:
        with zipfile.ZipFile(path) as archive:
            x, y, loss, done = (_array(archive, name) for name in ("x", "y", "loss", "done"))
            setting = json.loads(str(_array(archive, "setting")))
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
        raise RunError(f"{path} is not a landscape that can be read: {error}") from error
    if loss.shape != (len(y), len(x)) or done.shape != loss.shape or not isinstance(setting, dict):
        raise RunError(f"{path} is not a landscape that can be read: its arrays do not fit each other")
    return x, y, loss, done, setting


def _array(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """An array of an .npz, no longer than the bytes it lies in: neither packing nor a header may inflate it."""
    entry = archive.getinfo(f"{name}.npy")
    if entry.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed, which is never written")
    data = io.BytesIO(archive.read(entry))
    if np.lib.format.read_magic(data) != (1, 0):
        raise ValueError(f"{name} is of another version")
    shape, _, dtype = np.lib.format.read_array_header_1_0(data)
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(data.getbuffer()) - data.tell():
        raise ValueError(f"{name} is said to be of shape {shape} and type {dtype}, and has other data")
    data.seek(0)
    found: NDArray[Any] = np.load(data, allow_pickle=False)
    return found


def _fingerprint(objective: Objective, points: Points) -> str:
    """Of the weights, the directions and the data: what the numbers depend on, and a name cannot tell."""
    digest = hashlib.sha256()

    def add(tensor: Tensor) -> None:
        digest.update(repr((tuple(tensor.shape), tensor.dtype)).encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)

    for tensor in (*objective.model.state_dict().values(), *(part for axis in points.axes for part in axis)):
        add(tensor)
    for inputs, targets in objective.batches:
        add(inputs)
        add(targets)
    return digest.hexdigest()
