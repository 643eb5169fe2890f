"""The 1,143 published accuracies, to set beside one's own.

They are those of the tables in *Meta Curvature-Aware Minimization for Domain Generalization* (ResNet-50, ImageNet
weights, 5,000 steps, 3 seeds): published/accuracy.csv. `source` tells the authors' own figures from those they took
over. Their "ERM" and "Adam" rows are one algorithm from two sources, and eight averages differ between the main and the
supplementary tables: all are kept, each under its table's label.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from mecam.benchmark.tables import AVERAGE, Row
from mecam.recipe import Recipe

SETTING = {"backbone": "resnet50", "steps": 5000, "batch": 32, "image_size": 224}
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
    def words(self) -> str:
        spread = "" if self.spread is None else f" ± {self.spread:.1f}"
        return f"{self.mean:.1f}{spread} [{self.algorithm}, {self.label}, {self.source}]"


@cache
def published() -> tuple[Published, ...]:
    """All of them."""
    with (files("mecam.benchmark") / "published" / "accuracy.csv").open(encoding="utf-8") as file:
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


def beside(row: Row, target: str) -> list[Published]:
    """The published cells of this row's algorithm on this data set and target."""
    names = _names(row.key.method, row.key.optimizer, row.key.averaging)
    return [
        cell
        for cell in published()
        if _plain(cell.data) == _plain(row.key.data) and cell.target == target and _plain(cell.algorithm) in names
    ]


def departures(recipe: Recipe) -> list[str]:
    """In what a run's setting differs from the published ones'."""
    found = [f"{name} {getattr(recipe, name)}, not {value}" for name, value in SETTING.items()
             if getattr(recipe, name) != value and not (name == "steps" and recipe.steps == 15000)]  # fmt: skip
    if recipe.weights is None:
        found.append("no ImageNet-1k V1 weights given")
    return found


def _names(method: str, optimizer: str, averaging: str) -> set[str]:
    """How the paper may call a combination, in plain letters."""
    optimizers: Sequence[str] = SAME.get(optimizer, (optimizer,))
    if method == "erm":
        heads = [*optimizers]
    elif optimizer == "adam":
        heads = [method, *(f"Adam{method}",)]
    else:
        heads = [f"{name}{method}" for name in optimizers]
    tail = "" if averaging == "none" else averaging
    return {_plain(f"{head}{tail}") for head in heads}


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())
