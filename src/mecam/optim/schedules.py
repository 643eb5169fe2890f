"""Schedules for rho: where the perturbation's radius goes as training goes on.

    schedule = RhoSchedule(optimizer, cosine(steps=5000, final=0.1))
    for batch in batches:
        optimizer.step(closure)
        schedule.step()

A schedule is a factor on each group's own rho as a function of the step (from 0), or, tied to the learning rate, a rho
as a function of the group.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from mecam.optim.sharpness import SharpnessAware

Factor = Callable[[int], float]
OfGroup = Callable[[dict[str, Any]], Any]


def constant() -> Factor:
    """rho_t = rho"""
    return _constant


def linear(steps: int, final: float = 0.0) -> Factor:
    """From rho to final * rho in a straight line over `steps` steps, then constant."""
    _check_steps(steps)
    return partial(_linear, steps=steps, final=final)


def cosine(steps: int, final: float = 0.0) -> Factor:
    """From rho to final * rho along half a cosine over `steps` steps, then constant."""
    _check_steps(steps)
    return partial(_cosine, steps=steps, final=final)


def inverse_sqrt() -> Factor:
    """rho_t = rho / sqrt(t), t = 1, 2, ...: what the convergence theorem assumes."""
    return _inverse_sqrt


# functions of the module, since a schedule may be pickled
def _constant(_: int) -> float:
    return 1.0


def _linear(step: int, *, steps: int, final: float) -> float:
    return 1 + (final - 1) * min(step / steps, 1)


def _cosine(step: int, *, steps: int, final: float) -> float:
    return final + (1 - final) * (1 + math.cos(math.pi * min(step / steps, 1))) / 2


def _inverse_sqrt(step: int) -> float:
    return 1 / math.sqrt(step + 1)


def _check_steps(steps: int) -> None:
    if steps < 1:
        raise ValueError(f"steps={steps!r} is not allowed; a schedule takes at least 1 step")


class proportional_to_lr:  # noqa: N801 - read as the functions above
    """GSAM's rule: rho_t = rho_min + (rho_max - rho_min) (lr - lr_min) / (lr_max - lr_min), rho_min below lr_min."""

    def __init__(self, rho_max: float, lr_max: float, *, rho_min: float = 0.0, lr_min: float = 0.0) -> None:
        if not lr_max > lr_min:
            raise ValueError(f"lr_max={lr_max!r} must be above lr_min={lr_min!r}")
        self.rho_max, self.rho_min, self.lr_max, self.lr_min = rho_max, rho_min, lr_max, lr_min

    def __call__(self, group: dict[str, Any]) -> Any:
        share = (group["lr"] - self.lr_min) / (self.lr_max - self.lr_min)
        share = share.clamp(min=0) if isinstance(share, Tensor) else max(share, 0.0)
        return self.rho_min + (self.rho_max - self.rho_min) * share


class RhoSchedule:
    """Sets rho in the optimizer's groups; step() once after each optimizer step (and after the lr scheduler's)."""

    def __init__(self, optimizer: SharpnessAware, shape: Factor | proportional_to_lr) -> None:
        if not isinstance(optimizer, SharpnessAware):
            raise TypeError(f"{type(optimizer).__name__} has no rho; a sharpness-aware optimizer is needed")
        self.optimizer = optimizer
        self.shape = shape
        self.steps = 0
        self.initial = [float(group["rho"]) for group in optimizer.param_groups]
        self._set()

    def step(self) -> None:
        self.steps += 1
        self._set()

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "initial": list(self.initial)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.initial = state["steps"], list(state["initial"])
        self._set()

    def _set(self) -> None:
        groups, allowed = self.optimizer.param_groups, self.optimizer.hyperparameters["rho"]
        for group in groups[len(self.initial) :]:  # groups that joined since
            self.initial.append(float(group["rho"]))
        for group, initial in zip(groups, self.initial, strict=True):
            tied = isinstance(self.shape, proportional_to_lr)
            value = self.shape(group) if tied else initial * self.shape(self.steps)  # type: ignore[arg-type]
            value = value if isinstance(value, Tensor) else float(value)
            allowed.check(f"{type(self.optimizer).__name__}, by its schedule", "rho", value)
            if isinstance(group["rho"], Tensor):
                group["rho"].fill_(value)  # in place: a captured CUDA graph reads this tensor
            else:
                group["rho"] = float(value)
