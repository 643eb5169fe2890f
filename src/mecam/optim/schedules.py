"""Schedules: factors on the learning rate or on rho, as functions of the step.

    schedule = RhoSchedule(optimizer, warmup(100, cosine(4900, final=0.1)))
    for batch in batches:
        optimizer.step(closure)
        schedule.step()

Steps count from 0. `RhoSchedule` applies a factor to each group's own rho, or sets rho from the group's learning rate
(`proportional_to_lr`). For the learning rate, pass a factor to `torch.optim.lr_scheduler.LambdaLR`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from mecam.near import hint
from mecam.optim.sharpness import SharpnessAware

Factor = Callable[[int], float]
OfGroup = Callable[[dict[str, Any]], Any]


def constant() -> Factor:
    """Return 1 at every step."""
    return _constant


def linear(steps: int, final: float = 0.0) -> Factor:
    """Decay linearly from 1 to `final` over `steps` steps, then stay constant."""
    _check_steps(steps)
    return partial(_linear, steps=steps, final=final)


def cosine(steps: int, final: float = 0.0) -> Factor:
    """Decay from 1 to `final` along half a cosine over `steps` steps, then stay constant."""
    _check_steps(steps)
    return partial(_cosine, steps=steps, final=final)


def inverse_sqrt() -> Factor:
    """1 / sqrt(t), t = 1, 2, ...: what the convergence theorem assumes of the learning rate and of rho."""
    return _inverse_sqrt


def warmup(steps: int, then: Factor) -> Factor:
    """Increase linearly, (t + 1) / steps at step t < steps, then follow `then` from its step 0."""
    if steps < 0:
        raise ValueError(f"steps={steps!r} is not allowed; a warm-up takes at least 0 steps")
    return partial(_warmup, steps=steps, then=then) if steps else then


def by_name(name: str, *, updates: int, warmup_steps: int = 0) -> Factor:
    """Return the schedule of this name for a run of `updates` steps.

    After the warm-up, cosine and linear decay from 1 towards 0 over the remaining updates, t = 0, 1, ..., n - 1, with
    progress t / n: the last update is small, but not 0. inverse_sqrt is 1 / sqrt(t + 1).
    """
    if name not in SCHEDULES:
        raise ValueError(f"there is no schedule {name!r}; {hint(name, SCHEDULES)}")
    if not 0 <= warmup_steps < updates:
        raise ValueError(f"warmup_steps={warmup_steps!r} is not allowed; it must be in [0, {updates})")
    return warmup(warmup_steps, SCHEDULES[name](updates - warmup_steps))


# functions of the module, since a schedule may be pickled
def _constant(_: int) -> float:
    return 1.0


def _linear(step: int, *, steps: int, final: float) -> float:
    return 1 + (final - 1) * min(step / steps, 1)


def _cosine(step: int, *, steps: int, final: float) -> float:
    return final + (1 - final) * (1 + math.cos(math.pi * min(step / steps, 1))) / 2


def _inverse_sqrt(step: int) -> float:
    return 1 / math.sqrt(step + 1)


def _warmup(step: int, *, steps: int, then: Factor) -> float:
    return (step + 1) / steps if step < steps else then(step - steps)


# each made for a number of updates; constant and inverse_sqrt do not depend on it
SCHEDULES: Mapping[str, Callable[[int], Factor]] = {
    "constant": lambda _: constant(),
    "cosine": cosine,
    "linear": linear,
    "inverse_sqrt": lambda _: inverse_sqrt(),
}


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
    """Set rho in the optimizer's groups. Call step() after each optimizer step and lr scheduler step."""

    def __init__(self, optimizer: SharpnessAware, shape: Factor | proportional_to_lr) -> None:
        if not isinstance(optimizer, SharpnessAware):
            raise TypeError(f"{type(optimizer).__name__} has no rho; a sharpness-aware optimizer is needed")
        self.optimizer = optimizer
        self.shape = shape
        self.steps = 0
        self.initial = [float(group[optimizer.key("rho")]) for group in optimizer.param_groups]
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
        key = self.optimizer.key("rho")
        for group in groups[len(self.initial) :]:  # groups that joined since
            self.initial.append(float(group[key]))
        for group, initial in zip(groups, self.initial, strict=True):
            tied = isinstance(self.shape, proportional_to_lr)
            value = self.shape(group) if tied else initial * self.shape(self.steps)  # type: ignore[arg-type]
            value = value if isinstance(value, Tensor) else float(value)
            allowed.check(f"{type(self.optimizer).__name__}, by its schedule", "rho", value)
            if isinstance(group[key], Tensor):
                group[key].fill_(value)  # in place: a captured CUDA graph reads this tensor
            else:
                group[key] = float(value)
