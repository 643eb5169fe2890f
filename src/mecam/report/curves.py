"""Curves over steps, thinned: accuracy and loss from a run's records, learning rate and rho from its recipe."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mecam.recipe import Recipe
from mecam.splits import percent, summarize
from mecam.training import rates

POINTS = 41  # per curve; more cannot be distinguished on a page
Number = float | None  # None: not finite, or not known


def curve(records: Sequence[Mapping[str, Any]], target: str | None) -> dict[str, Any]:
    """Return the curve of these records, with first and last point.

    Accuracies are in percent; those of the source are the mean over the sources' held-out parts.
    """
    kept = [records[place] for place in _spaced(len(records))]
    accuracies = [summarize(record["splits"], target) for record in kept]
    losses = [summarize(record["splits"], target, "loss") for record in kept]
    return {
        "steps": [record["step"] for record in kept],
        "source_accuracy": [short(percent(accuracy.validation)) for accuracy in accuracies],
        "source_loss": [short(loss.validation) for loss in losses],
        "target_accuracy": [short(percent(accuracy.target)) for accuracy in accuracies],
        "target_loss": [short(loss.target) for loss in losses],
    }


def schedule(recipe: Recipe) -> dict[str, Any]:
    """Return the schedule of this recipe, with both ends and the ends of its warm-ups.

    It is without a method's own factors. Two points are enough where learning rate and rho are constant; rho is None
    for an optimizer without it.
    """
    steps = {0, recipe.steps}
    if rates.changes_lr(recipe) or rates.changes_rho(recipe):
        corners = (step for warmup in (recipe.warmup, recipe.rho_warmup) if warmup for step in (warmup - 1, warmup))
        steps |= {*_spaced(recipe.steps + 1), *corners}
    lr, rho, radius = rates.lr_factor(recipe), rates.rho_factor(recipe), rates.initial_rho(recipe)
    return {
        "steps": sorted(steps),
        "lr": [short(recipe.lr * lr(step)) for step in sorted(steps)],
        "rho": None if radius is None else [short(radius * rho(step)) for step in sorted(steps)],
    }


def short(value: float | None, digits: int = 4) -> Number:
    """Round to four digits, enough for a chart; None for NaN and infinity."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{digits}g}")


def full(value: float | None) -> Number:
    """Round to ten digits: the page rounds these itself, as the tables do."""
    return short(value, 10)


def _spaced(count: int) -> list[int]:
    """Return at most POINTS evenly spaced indices below `count`, with both ends."""
    return np.linspace(0, count - 1, min(count, POINTS)).round().astype(int).tolist() if count else []
