"""Figure 4: the loss around several runs, side by side on one scale; from grids that were saved."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mecam.analysis.landscape import Landscape, read
from mecam.benchmark.results import DAMAGE, Result
from mecam.benchmark.tables import rows
from mecam.figures import _style
from mecam.figures.points import Missing, in_paper_order, named
from mecam.recipe import recipe_of
from mecam.runs import RunError, RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPARED = ("adam", "sam", "mecam")  # the paper's
MOST = 6  # panels


@dataclass(frozen=True)
class Landscapes:
    """Grids over the same images and directions, by the names of their runs."""

    data: str
    target: str
    seed: int
    split: str
    grids: Mapping[str, Landscape]


def values(out: Path, results: Sequence[Result]) -> Landscapes:
    """Return the saved grids that can be compared: one target and seed, the same images and directions."""
    groups: dict[tuple[object, ...], dict[Path, tuple[Result, Landscape]]] = {}
    for result, grid in _of_records(results) if out.is_file() else _of_folders(out):
        recipe = result.recipe
        place = (recipe.data, recipe.target, recipe.seed, grid.x, grid.y)
        setting = tuple(str(grid.setting.get(name)) for name in ("split", "directions", "images"))
        if min(grid.loss.shape) > 1 and np.isfinite(grid.loss).any():
            groups.setdefault((*place, *setting), {})[result.path] = (result, grid)
    if not groups:
        raise Missing("no loss landscape was saved", "figure4", command=_command(results))
    best = max(groups.values(), key=_worth)
    table = sorted(rows([result for result, _ in best.values()]), key=lambda row: in_paper_order(row.key.optimizer))
    shown = table[:MOST]
    grids = {
        name: best[row.results[0].path][1] for name, row in zip(named([row.key for row in shown]), shown, strict=True)
    }
    first = shown[0].results[0]
    split = str(next(iter(grids.values())).setting.get("split"))
    return Landscapes(first.data, first.target, first.recipe.seed, split, grids)


def _of_folders(out: Path) -> Iterator[tuple[Result, Landscape]]:
    """Yield the grids that `mecam landscape` saved below a folder."""
    for file in sorted({*out.glob("*/landscape-*.npz"), *out.glob("*/*/landscape-*.npz")}):
        with suppress(RunError, OSError, *DAMAGE):
            yield Result(file.parent, recipe_of(file.parent), None, None), read(file)


def _of_records(results: Sequence[Result]) -> Iterator[tuple[Result, Landscape]]:
    """Yield the grids that `mecam bench --measure landscape` put into a records file."""
    for result in results:
        plane = {} if result.record is None else result.record.measurements.get("landscape", {}).get("plane", {})
        if plane:
            yield result, Landscape.from_dict(plane)


def _worth(group: Mapping[Path, tuple[Result, Landscape]]) -> tuple[int, bool, int]:
    """Return the sort key of a group: more runs, then random directions as in the paper, then more points."""
    _, grid = next(iter(group.values()))
    return len(group), "random" in str(grid.setting.get("directions")), grid.loss.size


def draw(landscapes: Landscapes) -> Figure:
    """Draw labelled contours, side by side."""
    from mecam.analysis.plot_landscape import contours

    figure = contours(landscapes.grids)
    for axes in figure.axes:
        axes.grid(visible=False)
    where = f"{landscapes.data}, target {landscapes.target}, seed {landscapes.seed}, {landscapes.split} images"
    return _style.titled(figure, f"Loss landscapes: {where}")


def _command(results: Sequence[Result]) -> str:
    """Return the `mecam landscape` command for runs of one target and seed, "" where there are none."""
    groups: dict[tuple[str, str, int], dict[str, Result]] = {}
    for result in sorted(results, key=lambda result: (result.recipe.steps, result.validation or 0)):
        recipe = result.recipe
        plain = recipe.method == "erm" and recipe.averaging == "none" and recipe.optimizer in COMPARED
        if plain and result.accuracy is not None and RunFolder(result.path).model_file.exists():
            groups.setdefault((result.data, result.target, recipe.seed), {})[recipe.optimizer] = result
    if not groups:
        return ""
    best = max(groups.values(), key=len)
    runs = [f"RESULTS/{shlex.quote(best[name].path.name)}" for name in COMPARED if name in best]
    return f"mecam landscape {' '.join(runs)} --out RESULTS/landscape"
