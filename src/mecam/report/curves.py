"""Curves over steps, thinned: accuracy and loss from a run's records, learning rate and rho from its recipe."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mecam.recipe import Recipe
from mecam.splits import percent, summarize
from mecam.training import rates

POINTS = 41  # per curve; more cannot be distinguished on a page
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
    """Return the curve of these records, with first and last point."""
    kept = [records[place] for place in _spaced(len(records), POINTS)]
    accuracies = [summarize(record["splits"], target) for record in kept]
    losses = [summarize(record["splits"], target, "loss") for record in kept]
    return Curve(
        [record["step"] for record in kept],
        [short(percent(accuracy.validation)) for accuracy in accuracies],
        [short(loss.validation) for loss in losses],
        [short(percent(accuracy.target)) for accuracy in accuracies],
        [short(loss.target) for loss in losses],
    )


@dataclass(frozen=True)
class Schedule:
    """A recipe's learning rate and rho, without a method's own factors; two points where both are constant."""

    steps: list[int]
    lr: list[Number]
    rho: list[Number] | None  # None: the optimizer has no rho


def schedule(recipe: Recipe) -> Schedule:
    """Return the schedule of this recipe, with both ends and the ends of its warm-ups."""
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
    """Round to four digits, enough for a chart; None for NaN and infinity."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{digits}g}")


def full(value: float | None) -> Number:
    """Round to ten digits: the page rounds these itself, as the tables do."""
    return short(value, 10)


def _spaced(count: int, most: int) -> list[int]:
    """Return at most `most` evenly spaced indices below `count`, with both ends."""
    if count <= most:
        return list(range(count))
    return [round(place * (count - 1) / (most - 1)) for place in range(most)]
