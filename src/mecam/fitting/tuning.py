"""Decide whether fine-tuning all weights fits a time budget, and with which settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mecam.optim.registry import find as find_optimizer

FEWEST, MOST = 100, 2000  # steps of a run
SHARPNESS_AWARE_FROM = 300  # steps from which MeCAM's passes pay
MARGIN = 0.85  # share of the time left that is planned with
IMAGES_ON_CPU = 16  # per step, in 3 GB of memory
BACKWARD = 2.0  # times the forward pass, at least


@dataclass(frozen=True)
class Rates:
    """What a fine-tuning run costs on this machine."""

    step: float  # seconds of a step with one pass
    images: float  # images per second of an evaluation
    counts: Sequence[int]  # images of each domain
    evaluations: int  # in training

    @property
    def fixed(self) -> float:
        """Seconds of a run's evaluations: the target and a fifth of the sources in training, all at the end and for
        the novelty.
        """
        everything = sum(self.counts)
        target = everything / len(self.counts)
        return (self.evaluations * (0.8 * target + 0.2 * (everything - target)) + 2 * everything) / self.images

    @property
    def runs(self) -> int:
        """One for each left-out domain, and the final one."""
        return len(self.counts) + 1

    def steps(self, seconds: float) -> int:
        """Return the steps of each run that fit into this time, with one pass."""
        return max(0, math.floor((MARGIN * seconds / self.runs - self.fixed) / self.step))

    def seconds(self, steps: int) -> float:
        """Return the time that all runs need for this many steps of one pass."""
        return self.runs * (steps * self.step + self.fixed) / MARGIN


def batch_on(device: str, domains: int) -> int:
    """Return the images per domain and step."""
    return max(2, IMAGES_ON_CPU // domains) if device == "cpu" else 32


def least_seconds_per_step(domains: int, batch: int, images: float) -> float:
    """Return a lower bound from the images per second of a forward pass; `domains` are the sources."""
    return (1 + BACKWARD) * domains * batch / images


def settings(rates: Rates, seconds: float, batch: int) -> dict[str, Any]:
    """Return the recipe entries of fine-tuning in this time; none if too few steps fit."""
    steps, passes = rates.steps(seconds), find_optimizer("mecam").passes
    if steps < FEWEST:
        return {}
    aware = steps // passes >= SHARPNESS_AWARE_FROM
    steps = min(MOST, steps // passes if aware else steps)
    every = max(1, math.ceil(steps / max(1, rates.evaluations - 1)))
    return {"optimizer": "mecam" if aware else "adam", "steps": steps, "batch": batch, "evaluate_every": every}
