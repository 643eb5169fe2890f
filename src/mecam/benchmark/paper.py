"""The 1,143 published accuracies, for comparison with our own.

They are from the tables in *Meta Curvature-Aware Minimization for Domain Generalization*: published/accuracy.csv.
`source` distinguishes the authors' own figures from those they cite. Their "ERM" and "Adam" rows are one algorithm from
two sources, and eight averages differ between the main and the supplementary tables: all are kept, each under its
table's label. The settings behind a cell are those of a profile; mecam.benchmark.departures compares with them.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from mecam import profiles
from mecam.benchmark.tables import AVERAGE, Key
from mecam.near import plain
from mecam.recipe import OPTIMIZERS

ALL = "Average"  # of the data sets, in the tables that have them side by side
TARGETS = {  # as in the tables: as in the folders
    "PACS": {"Art": "art_painting", "Cartoon": "cartoon", "Photo": "photo", "Sketch": "sketch"},
    "VLCS": {"Caltech": "Caltech101", "LabelMe": "LabelMe", "SUN": "SUN09", "VOC": "VOC2007"},
    "OfficeHome": {"Art": "Art", "Clipart": "Clipart", "Product": "Product", "Real-World": "Real World"},
    "TerraIncognita": {f"L{number}": f"location_{number}" for number in (100, 38, 43, 46)},
    "DomainNet": {"Clip": "clip", "Info": "info", "Paint": "paint", "Quick": "quick", "Real": "real",
                  "Sketch": "sketch"},
}  # fmt: skip
SAME = {"adam": ("ERM", "Adam"), "yogi": ("YOGI",), "mecam": ("MeCAM",)}  # ours: theirs, where the spelling says little


@dataclass(frozen=True)
class Published:
    """A published cell."""

    table: str  # methods, optimizers or combinations
    data: str
    target: str  # our name for it; "average"
    algorithm: str
    mean: float
    spread: float | None
    source: str
    label: str  # of the table in the paper

    @property
    def profile(self) -> str:
        """The profile behind the number: that of DomainBed for Table 2's rows, unless their authors used another."""
        searched = {"mecam", *(name for name, _ in profiles.rivals())}
        return "domainbed" if self.table == "methods" and plain(self.algorithm) not in searched else "paper"


@cache
def published() -> tuple[Published, ...]:
    """Return all published cells."""
    with (files("mecam") / "published" / "accuracy.csv").open(encoding="utf-8") as file:
        return tuple(
            Published(
                line["table"],
                line["dataset"],
                TARGETS.get(line["dataset"], {}).get(line["target"], AVERAGE),
                line["algorithm"],
                float(line["mean"]),
                float(line["spread"]) if line["spread"] else None,
                line["source"],
                line["label"],
            )
            for line in csv.DictReader(file)
        )


def settings_of(data: str) -> dict[str, float]:
    """Return MeCAM's rho, alpha and beta behind the published accuracies on this data set; empty for any other."""
    values = profiles.hyperparameters().get(profiles.data_set(data) or "", {})
    return {name: values[name] for name in ("rho", "alpha", "beta") if name in values}


def beside(key: Key, target: str, data: str | None = None) -> list[Published]:
    """Return the published cells of this row's algorithm on a target; `data` is the row's, or another, or ALL."""
    if key.method_variant:
        return []
    place = plain(Path(data or key.data).name), target
    names = _names(key.method, key.optimizer, key.averaging)
    return [cell for name in names for cell in _by_place().get((*place, name), ())]


@cache
def curvatures() -> dict[str, dict[float, float]]:
    """Return the paper's Table 5: C by algorithm and rho, ResNet-50 on PACS; the split is not stated."""
    with (files("mecam") / "published" / "curvature_pacs.csv").open(encoding="utf-8") as file:
        return {
            line.pop("algorithm"): {float(name.removeprefix("rho_")): float(value) for name, value in line.items()}
            for line in csv.DictReader(file)
        }


def curvature_beside(key: Key) -> dict[str, dict[float, float]]:
    """Return the rows of Table 5 for this row's algorithm."""
    names = _names(key.method, key.optimizer, key.averaging)
    return {name: values for name, values in curvatures().items() if plain(name) in names}


@cache
def _by_place() -> dict[tuple[str, str, str], list[Published]]:
    """Return the cells by data set, target and algorithm, in plain letters."""
    cells: dict[tuple[str, str, str], list[Published]] = {}
    for cell in published():
        cells.setdefault((plain(cell.data), cell.target, plain(cell.algorithm)), []).append(cell)
    return cells


def _names(method: str, optimizer: str, averaging: str) -> list[str]:
    """Return the names that the paper may use for a combination, in plain letters."""
    optimizers: Sequence[str] = SAME.get(optimizer, (optimizer,))
    if method == "erm":
        heads = [*optimizers]
    elif optimizer == OPTIMIZERS.get(method, "adam"):
        heads = [method, f"Adam{method}"]
    else:
        heads = [f"{name}{method}" for name in optimizers]
    tail = "" if averaging == "none" else averaging
    return [plain(f"{head}{tail}") for head in heads]
