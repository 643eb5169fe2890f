"""Against steps: accuracy and loss from a run's records, learning rate and rho from its recipe; all thinned."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mecam.recipe import Recipe
from mecam.training import rates

POINTS = 41  # of a curve; more cannot be told apart on a page
Number = float | None  # None: not finite, or not known


@dataclass(frozen=True)
class Curve:
    """A run's evaluations. Accuracies in percent; `source` is the mean over the sources' held-out parts."""

    steps: list[int]
    source_accuracy: list[Number]
    source_loss: list[Number]
    target_accuracy: list[Number]
    target_loss: list[Number]


def curve(records: Sequence[Mapping[str, Any]], target: str) -> Curve:
    """The curve of these records, first and last point kept."""
    kept = [records[place] for place in _spaced(len(records), POINTS)]
    source = [_means(record["splits"], target) for record in kept]
    unseen = [record["splits"].get(f"{target} in", {}) for record in kept]  # the part that the tables report
    return Curve(
        [record["step"] for record in kept],
        [short(_percent(accuracy)) for accuracy, _ in source],
        [short(loss) for _, loss in source],
        [short(_percent(metrics.get("accuracy"))) for metrics in unseen],
        [short(metrics.get("loss")) for metrics in unseen],
    )


@dataclass(frozen=True)
class Schedule:
    """A recipe's learning rate and rho, without a method's own factors; two points where both are constant."""

    steps: list[int]
    lr: list[Number]
    rho: list[Number] | None  # None: the optimizer has no rho


def schedule(recipe: Recipe) -> Schedule:
    """The schedule of this recipe, with both ends and where its warm-ups end."""
    last = recipe.steps
    if rates.changes_lr(recipe) or rates.changes_rho(recipe):
        corners = {step for warmup in (recipe.warmup, recipe.rho_warmup) if warmup for step in (warmup - 1, warmup)}
        steps = sorted({*_spaced(last + 1, POINTS), *corners})
    else:
        steps = sorted({0, last})
    lr, rho = rates.lr_factor(recipe), rates.rho_factor(recipe)
    radius = rates.initial_rho(recipe)
    return Schedule(
        steps,
        [short(recipe.lr * lr(step)) for step in steps],
        None if radius is None else [short(radius * rho(step)) for step in steps],
    )


def short(value: float | None, digits: int = 4) -> Number:
    """Four digits, which is what a chart can show; None for what is no number."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{digits}g}")


def full(value: float | None) -> Number:
    """For numbers that the page rounds itself: of one rounded before, it would show another than the tables do."""
    return short(value, 10)


def _means(splits: Mapping[str, Mapping[str, Any]], target: str) -> tuple[Number, Number]:
    held_out = [metrics for name, metrics in splits.items() if name.endswith(" out") and name != f"{target} out"]
    if not held_out:
        return None, None
    return statistics.fmean(m["accuracy"] for m in held_out), statistics.fmean(m["loss"] for m in held_out)


def _percent(share: float | None) -> Number:
    return None if share is None else 100 * share


def _spaced(count: int, most: int) -> list[int]:
    """At most `most` places among `count`, even, with both ends."""
    if count <= most:
        return list(range(count))
    return [round(place * (count - 1) / (most - 1)) for place in range(most)]
