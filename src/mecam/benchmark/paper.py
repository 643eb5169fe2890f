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
from pathlib import Path

from mecam.benchmark.tables import AVERAGE, Key
from mecam.recipe import Recipe

SETTING = {
    "batch": 32, "image_size": 224, "holdout": 0.2, "selection": "validation",
    "lr_schedule": "constant", "warmup": 0, "rho_schedule": "constant", "rho_warmup": 0,
}  # fmt: skip
V1 = "timm/resnet50.tv_in1k"  # ResNet-50 with the weights they start from
STEPS = {"DomainNet": 15000}  # elsewhere 5000
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


def settings_of(data: str) -> dict[str, float]:
    """MeCAM's rho, alpha and beta behind the published accuracies on this data set; empty for any other."""
    with (files("mecam.benchmark") / "published" / "hyperparameters.csv").open(encoding="utf-8") as file:
        found = next((line for line in csv.DictReader(file) if _same(line["dataset"], data)), None)
    return {} if found is None else {name: float(found[name]) for name in ("rho", "alpha", "beta")}


def beside(key: Key, target: str, data: str | None = None) -> list[Published]:
    """The published cells of this row's algorithm on a target; `data` is the row's, or another, or ALL."""
    place = _plain(data or key.data), target
    names = _names(key.method, key.optimizer, key.averaging)
    return [cell for name in names for cell in _by_place().get((*place, name), ())]


def departures(recipe: Recipe) -> list[str]:
    """In what a run's setting differs from the published ones'."""
    expected = SETTING | {"steps": next((n for name, n in STEPS.items() if _same(name, recipe.data)), 5000)}
    found = [
        f"{name} {getattr(recipe, name)}, not {value}"
        for name, value in expected.items()
        if getattr(recipe, name) != value and not (name == "image_size" and _own_size(recipe))
    ]
    if recipe.backbone not in ("resnet50", V1):
        found.append(f"backbone {recipe.backbone}, not resnet50")
    if recipe.weights is None and not (recipe.backbone == V1 and recipe.pretrained is not False):
        found.append("no ImageNet-1k V1 weights given")
    return found


def _own_size(recipe: Recipe) -> bool:
    """Whether this is V1 at its own size, which is 224."""
    return recipe.backbone == V1 and recipe.image_size is None


@cache
def _by_place() -> dict[tuple[str, str, str], list[Published]]:
    """The cells by data set, target and algorithm, in plain letters."""
    found: dict[tuple[str, str, str], list[Published]] = {}
    for cell in published():
        found.setdefault((_plain(cell.data), cell.target, _plain(cell.algorithm)), []).append(cell)
    return found


def _names(method: str, optimizer: str, averaging: str) -> list[str]:
    """How the paper may call a combination, in plain letters."""
    optimizers: Sequence[str] = SAME.get(optimizer, (optimizer,))
    if method == "erm":
        heads = [*optimizers]
    elif optimizer == "adam":
        heads = [method, f"Adam{method}"]
    else:
        heads = [f"{name}{method}" for name in optimizers]
    tail = "" if averaging == "none" else averaging
    return [_plain(f"{head}{tail}") for head in heads]


def _same(published: str, data: str) -> bool:
    return _plain(published) == _plain(Path(data).name)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())
