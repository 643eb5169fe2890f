"""The 1,143 published accuracies, for comparison with our own.

They are from the tables in *Meta Curvature-Aware Minimization for Domain Generalization*: published/accuracy.csv.
`source` distinguishes the authors' own figures from those they cite. Their "ERM" and "Adam" rows are one algorithm from
two sources, and eight averages differ between the main and the supplementary tables: all are kept, each under its
table's label. The settings behind a cell are those of a profile, the one source of what our runs are compared with.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mecam import profiles
from mecam.benchmark.settings import registry
from mecam.benchmark.tables import AVERAGE, Key, Row
from mecam.defaults import OPTIMIZERS
from mecam.near import plain
from mecam.recipe import Recipe

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
# the entries of a recipe that published results depend on; the others for sharpness-aware optimizers
ENTRIES = (
    "lr", "weight_decay", "dropout", "batch", "steps", "evaluate_every", "holdout", "selection",
    "balanced", "class_weights", "augment", "resize", "lr_schedule", "warmup", "patience", "sources",
)  # fmt: skip
SHARPNESS_AWARE = ("base", "rho_schedule", "rho_warmup")
SAME_NETWORK = ("resnet50", profiles.V1)


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
    cells = []
    for line in profiles.published_rows("accuracy.csv"):
        data, spread = line.pop("dataset"), line.pop("spread", None)
        line["target"] = TARGETS.get(data, {}).get(line["target"], AVERAGE)
        cells.append(Published(data=data, spread=spread, **line))
    return tuple(cells)


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


def curvature_beside(key: Key) -> dict[str, dict[float, float]]:
    """Return the rows of the paper's Table 5 for this algorithm: C by rho of ResNet-50 on PACS, split not stated."""
    names = _names(key.method, key.optimizer, key.averaging)
    return {
        algorithm: {float(name.removeprefix("rho_")): value for name, value in line.items()}
        for line in profiles.published_rows("curvature_pacs.csv")
        if plain(algorithm := line.pop("algorithm")) in names
    }


def departures_of_row(row: Row) -> dict[str, list[str]]:
    """List how the row's runs differ from each profile that is behind a published cell beside it.

    A setting in which the runs differ among themselves was searched.
    """
    by_profile = {}
    for profile in sorted({cell.profile for target in row.cells for cell in beside(row.key, target)}):
        runs = [departures_of_run(result.recipe, profile) for result in row.results]
        departures: dict[str, None] = {}
        for words in itertools.chain.from_iterable(runs):
            ours, _, theirs = words.partition(", not ")
            searched = theirs and not all(words in run for run in runs)
            departures[f"{ours.split()[0]} searched, not {theirs}" if searched else words] = None
        by_profile[profile] = list(departures)
    return by_profile


def fewest(by_profile: Mapping[str, list[str]]) -> list[str]:
    """Return the departures from the nearest profile; none where nothing was published."""
    return min(by_profile.values(), key=len, default=[])


def departures_of_run(recipe: Recipe, profile: str) -> list[str]:
    """List the settings of a run that are not those of the profile."""
    same = ["data", "target", "method", "averaging"]
    if recipe.method != "fish":  # Fish is SGD's; under another optimizer it is a variant
        same.append("optimizer")
    expected = Recipe(**{name: getattr(recipe, name) for name in same}, profile=profile)
    if recipe.optimizer != expected.optimizer:
        return [f"optimizer {recipe.optimizer}, not {expected.optimizer}", *_network(recipe, expected)]
    ours, theirs = _settings(recipe), _settings(expected)
    differences = []
    for name in dict.fromkeys((*ours, *theirs)):
        table, _, setting = name.rpartition(".")
        default = None
        if name not in ours or name not in theirs:  # left out; rare, since the registry imports torch
            default = registry(table).defaults(getattr(recipe, table)).get(setting)
        mine, other = ours.get(name, default), theirs.get(name, default)
        close = isinstance(mine, float) and isinstance(other, (int, float)) and math.isclose(mine, other)
        if mine != other and not close:
            differences.append(f"{setting} {_words(mine)}, not {_words(other)}")
    return [*differences, *_network(recipe, expected)]


def legend(among: Iterable[tuple[Row, Sequence[str]]]) -> str:
    """Return the differences, each followed by its rows unless all rows have it.

    A data set stands for all of its rows, and is left out if there is only one.
    """
    every: dict[str, list[str]] = {}  # labels of rows by data set
    where: dict[str, dict[str, list[str]]] = {}  # the same, by difference
    for row, differences in among:
        if differences:
            every.setdefault(row.key.data, []).append(row.key.label)
        for each in differences:
            where.setdefault(each, {}).setdefault(row.key.data, []).append(row.key.label)
    parts = []
    for words, some in where.items():
        places = []
        for data, labels in some.items():
            place = f" on {data}" if len(every) > 1 else ""
            places.append(data if labels == every[data] else f"{', '.join(labels)}{place}")
        parts.append(words if some == every else f"{words} ({', '.join(places)})")
    return "; ".join(parts)


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


def _settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that a run's result depends on, without those of its network."""
    names = ENTRIES if recipe.optimizer in profiles.LR_RATIOS else (*ENTRIES, *SHARPNESS_AWARE)
    entries = {name: getattr(recipe, name) for name in names}
    known = profiles.OPTIMIZER_SETTINGS.get(recipe.optimizer, {})
    tables = {
        "optimizer": {**known, **recipe.optimizer_settings},
        "method": recipe.method_settings,
        "averaging": recipe.averaging_settings,
    }
    if recipe.optimizer in profiles.MECAM:
        entries["virtual"] = recipe.virtual
        tables["virtual"] = {} if recipe.virtual == "none" else recipe.virtual_settings
    return entries | {f"{table}.{name}": value for table, values in tables.items() for name, value in values.items()}


def _network(recipe: Recipe, expected: Recipe) -> list[str]:
    """List how the network differs. A weights file of `resnet50` counts as the published one."""
    differences = []
    if recipe.backbone not in SAME_NETWORK:
        differences.append(f"backbone {recipe.backbone}, not resnet50")
    if recipe.image_size not in (None, expected.image_size):  # None: the backbone's own
        differences.append(f"image_size {recipe.image_size}, not {expected.image_size}")
    pretrained = recipe.pretrained
    if pretrained is None:
        pretrained = recipe.backbone.startswith(("timm/", "hf-hub:", "lite"))
    starts = recipe.weights is not None or pretrained
    if not starts:
        differences.append("no ImageNet weights")
    if not (starts if recipe.freeze_bn is None else recipe.freeze_bn):
        differences.append("batch norm not frozen")
    return differences


def _words(value: Any) -> str:
    if value is None:
        return "the default"
    return f"{value:g}" if isinstance(value, float) else str(value)
