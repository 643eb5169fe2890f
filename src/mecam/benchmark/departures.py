"""How the settings of our runs differ from those behind the published cells: the profiles are the one source."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mecam import profiles
from mecam.benchmark import paper
from mecam.benchmark.settings import registry
from mecam.benchmark.tables import Row
from mecam.recipe import Recipe

ENTRIES = (
    "lr", "weight_decay", "dropout", "batch", "steps", "evaluate_every", "holdout", "selection",
    "balanced", "augment", "lr_schedule", "warmup",
)  # fmt: skip
SHARPNESS_AWARE = ("base", "rho_schedule", "rho_warmup")
SAME_NETWORK = ("resnet50", profiles.V1)


def of_row(row: Row) -> dict[str, list[str]]:
    """List how the row's runs differ from each profile that is behind a published cell beside it."""
    behind = {cell.profile for target in row.cells for cell in paper.beside(row.key, target)}
    return {profile: _joined([of_run(result.recipe, profile) for result in row.results]) for profile in sorted(behind)}


def fewest(by_profile: Mapping[str, list[str]]) -> list[str]:
    """Return the departures from the nearest profile; none where nothing was published."""
    return min(by_profile.values(), key=len, default=[])


def of_run(recipe: Recipe, profile: str) -> list[str]:
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
        default = None if name in ours and name in theirs else _default(recipe, table, setting)
        mine, other = ours.get(name, default), theirs.get(name, default)
        if not _equal(mine, other):
            differences.append(f"{setting} {_words(mine)}, not {_words(other)}")
    return [*differences, *_network(recipe, expected)]


def _joined(runs: Sequence[Sequence[str]]) -> list[str]:
    """List the departures of a row's runs, each once; a setting in which the runs differ was searched."""
    departures: dict[str, None] = {}
    for words in itertools.chain.from_iterable(runs):
        ours, _, theirs = words.partition(", not ")
        searched = theirs and not all(words in run for run in runs)
        departures[f"{ours.split()[0]} searched, not {theirs}" if searched else words] = None
    return list(departures)


def legend(among: Iterable[tuple[Row, Sequence[str]]]) -> str:
    """Return what differs, each with the rows it holds for unless it holds for all of them."""
    rows = [(row, words) for row, words in among if words]
    labels: dict[str, list[str]] = {}  # by data set
    where: dict[str, dict[str, list[str]]] = {}  # by difference and data set
    for row, words in rows:
        labels.setdefault(row.key.data, []).append(row.key.label)
        for each in words:
            where.setdefault(each, {}).setdefault(row.key.data, []).append(row.key.label)
    return "; ".join(words if some == labels else f"{words} ({_where(some, labels)})" for words, some in where.items())


def _where(some: Mapping[str, list[str]], all_labels: Mapping[str, list[str]]) -> str:
    """Shorten a list of rows: a data set stands for all of its rows, and is left out where there is one."""
    parts = []
    for data, labels in some.items():
        place = f" on {data}" if len(all_labels) > 1 else ""
        parts.append(data if labels == all_labels[data] else f"{', '.join(labels)}{place}")
    return ", ".join(parts)


def _settings(recipe: Recipe) -> dict[str, Any]:
    """Return what a run's result depends on, its network aside."""
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


def _default(recipe: Recipe, table: str, setting: str) -> Any:
    """Return the default of a setting that the recipe or the profile leaves out. Rare, since it imports torch."""
    return registry(table).defaults(getattr(recipe, table)).get(setting)


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


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)


def _words(value: Any) -> str:
    if value is None:
        return "the default"
    return f"{value:g}" if isinstance(value, float) else str(value)
