"""The runs of the study on PACS: which there are, in what order, which were done and what the search chose of them.

Needs no torch. The experiments are recipes/pacs_*.toml, so that `mecam bench recipes/pacs_main.toml` is the same runs;
what came out of each is a line in benchmarks/results/pacs.json, by the run's id, and for the study with ResNet-50 in
pacs_resnet50.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mecam.benchmark.plan import expand, read
from mecam.benchmark.settings import merge
from mecam.recipe import Recipe
from mecam.runs import write_atomic

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "pacs.json"
PHASES = ("search", "main", "half", "long", "parts", "beyond")
SHORT = {"half": ("main", {"steps": 1000})}  # a phase that has no file of its own: whose it takes, with which entries
RESNET50 = ("resnet50", "resnet50_more")  # the study with the paper's settings
TUNED = ("main", "half", "long")  # the phases that run what the search chose, and nothing else
TABLES = ("main", "half")  # of them, those whose runs are looked at closer: curvature, landscapes
CURVED = ("adam", "sam", "sagm", "crsam", "fsam", "mecam")  # whose curvature the paper compares
FIRST = ("adam", "sam", "mecam")  # whose seeds come before other optimizers' first one
EARLY = 2000  # if every run of seed 0 selects a step below this,
FEWER = 3000  # later seeds may take this many steps
Records = dict[str, dict[str, Any]]
Choice = dict[str, dict[str, Any]]  # by optimizer, its lr and optimizer_settings


def planned(
    phase: str,
    domains: Mapping[str, Sequence[str]],
    *,
    values: Mapping[str, Any] | None = None,
    choice: Choice | None = None,
    folder: Path = ROOT / "recipes",
) -> list[Recipe]:
    """The runs of a phase in the order they are run: what is there at any time has as many seeds of each as can be.

    Args:
        values: entries in place of the recipes' own, to try the whole on less.
        choice: what the search chose, in place of what the recipes say.
    """
    name, entries = SHORT.get(phase, (phase, {}))
    recipes = expand(merge(read(folder / f"pacs_{name}.toml").blocks, {**entries, **(values or {})}), domains)
    if choice and phase in TUNED:
        recipes = [replace(recipe, **choice.get(recipe.optimizer, {})) for recipe in recipes]
    if phase == "resnet50":  # all rows of a target before the next target, so that they can be compared
        return sorted(recipes, key=lambda recipe: (recipe.seed, str(recipe.target)))
    return sorted(recipes, key=lambda recipe: (_turn(recipe) if phase in ("search", *TABLES) else 0, recipe.seed))


def results_of(phase: str) -> Path:
    """Where the records of a phase are."""
    return RESULTS.with_name("pacs_resnet50.json") if phase in RESNET50 else RESULTS


def selects_early(records: Records, recipes: Sequence[Recipe]) -> bool:
    """Whether every run of seed 0 is there and selected a step below EARLY."""
    found = [records.get(recipe.run_id) for recipe in recipes if recipe.seed == 0]
    return bool(found) and all(record is not None and record["selected_step"] < EARLY for record in found)


def shortened(recipe: Recipe, records: Records) -> Recipe:
    """A run of a later seed with FEWER steps, unless it is there in full; a late start keeps its share of the steps."""
    if recipe.seed == 0 or recipe.steps <= FEWER or recipe.run_id in records:
        return recipe
    settings = dict(recipe.optimizer_settings)
    if "start" in settings:
        settings["start"] = settings["start"] * FEWER // recipe.steps
    return replace(recipe, steps=FEWER, optimizer_settings=settings)


def file_of(phase: str) -> str:
    """Where the runs of a phase are written down, in words."""
    name, entries = SHORT.get(phase, (phase, {}))
    words = " and ".join(f"{entry} = {value}" for entry, value in entries.items())
    return f"recipes/pacs_{name}.toml" + (f" with {words}" if words else "")


def _turn(recipe: Recipe) -> int:
    if recipe.method != "erm" or recipe.averaging != "none":
        return 2
    return 0 if recipe.optimizer in FIRST else 1


def load(path: Path) -> Records:
    """The records in this file; none where there is no file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def save(records: Records, path: Path) -> None:
    """A run a line, by its id, so that a difference of two versions shows runs."""
    lines = [f"{json.dumps(run_id)}: {json.dumps(records[run_id])}" for run_id in sorted(records)]
    write_atomic(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def known(recipe: Recipe, records: Records) -> dict[str, Any] | None:
    """What came out of a run: its record, else what a longer one says of it."""
    return records.get(recipe.run_id) or from_longer(recipe, records)


def from_longer(recipe: Recipe, records: Records, commit: str | None = None) -> dict[str, Any] | None:
    """What the shortest longer run of the same recipe, if need be at this commit, says of a run."""
    if (recipe.method, recipe.averaging, recipe.selection) != ("erm", "none", "validation"):
        return None  # anneals and averages may go by the length of the run
    if not {recipe.lr_schedule, recipe.rho_schedule} <= {"constant", "inverse_sqrt"}:
        return None  # so do the other schedules
    lengths = {record["recipe"].get("steps", Recipe.steps) for record in records.values()}
    for steps in sorted(length for length in lengths if length > recipe.steps):
        longer = records.get(replace(recipe, steps=steps).run_id)
        if longer is not None and commit in (None, longer["commit"]):
            shorter = cut(longer, recipe.steps)
            if shorter is not None:
                return shorter
    return None


def held(recipes: Sequence[Recipe], records: Records) -> list[Recipe]:
    """Those that need no training because a longer run holds them."""
    return [recipe for recipe in recipes if recipe.run_id not in records and known(recipe, records) is not None]


def cut(record: Mapping[str, Any], steps: int) -> dict[str, Any] | None:
    """The record of a run as if it had ended at this step; None where it was not evaluated there.

    Where learning rate and rho do not depend on the length of the run, it is the same run up to there. The weights are
    others: what was measured on them is left out, but for the accuracy on the target, which is in the history. The time
    is in proportion.
    """
    history = record["history"]
    if steps not in [entry[0] for entry in history]:
        return None
    selected = selected_until(record, steps)
    measured = ("splits", "curvature", "curvature_seconds", "landscape", "landscape_seconds")
    return {
        **{name: value for name, value in record.items() if name not in measured},
        "recipe": {**record["recipe"], "steps": steps},
        "selected_step": selected[0],
        "target_accuracy": selected[3],
        "history": [entry for entry in history if entry[0] <= steps],
        "seconds": round(record["seconds"] * steps / history[-1][0], 1),
    }


def selected_until(record: Mapping[str, Any], steps: int) -> list[float]:
    """The evaluation that is selected among those up to a step: highest source validation, the first of equals.

    Numbers here are rounded; among those that rounding made equal, the one that the whole run selected was the highest.
    """
    among = [entry for entry in record["history"] if entry[0] <= steps]
    return max(among, key=lambda entry: (entry[1], entry[0] == record["selected_step"]))


def validation(record: Mapping[str, Any]) -> float:
    """The mean source validation accuracy that a run was selected by; at the end where nothing is selected (SWAD)."""
    at_steps = {entry[0]: entry[1] for entry in record["history"]}
    selected = record["selected_step"]
    if selected is not None:
        return at_steps[selected]
    target = record["recipe"]["target"]
    held_out = [split[0] for name, split in record["splits"].items() if name.endswith(" out")]
    own = record["splits"].get(f"{target} out")
    return (sum(held_out) - (own[0] if own else 0.0)) / (len(held_out) - (own is not None))


def searched(records: Records, recipes: Sequence[Recipe]) -> dict[str, list[tuple[dict[str, Any], float | None]]]:
    """By optimizer its points, and the mean source validation of each over the targets; None if one was not run."""
    found: dict[str, dict[str, tuple[dict[str, Any], list[float | None]]]] = {}
    for recipe in recipes:
        point = {"lr": recipe.lr, "optimizer_settings": recipe.optimizer_settings}
        record = known(recipe, records)
        _, seen = found.setdefault(recipe.optimizer, {}).setdefault(json.dumps(point), (point, []))
        seen.append(None if record is None else validation(record))
    return {optimizer: [(point, _mean(seen)) for point, seen in points.values()] for optimizer, points in found.items()}


def chosen(records: Records, recipes: Sequence[Recipe]) -> Choice:
    """The best point of each optimizer whose search is complete; the first of equals. No target accuracy is read."""
    choice = {}
    for optimizer, points in searched(records, recipes).items():
        known = [(point, value) for point, value in points if value is not None]
        if len(known) == len(points):
            choice[optimizer] = max(known, key=lambda pair: pair[1])[0]
    return choice


def departures(recipes: Sequence[Recipe], choice: Choice) -> list[str]:
    """Where the recipes have other values than the search chose."""
    found = {}
    for recipe in recipes:
        for name, value in choice.get(recipe.optimizer, {}).items():
            if getattr(recipe, name) != value:
                label = " + ".join(
                    part for part in (recipe.optimizer, recipe.method, recipe.averaging) if part not in ("erm", "none")
                )
                found[f"{label}: {name} is {getattr(recipe, name)}, the search chose {value}"] = None
    return list(found)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None
