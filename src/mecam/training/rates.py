"""The learning rate and rho of every step, as pure functions of the step.

A run takes the updates t = 0, 1, ..., steps. With w = `warmup`, the learning rate of update t is lr times

    (t + 1) / w                                    t < w: linear warm-up
    1                                              lr_schedule = "constant"
    (1 + cos(pi (t - w) / (steps + 1 - w))) / 2    "cosine"
    1 - (t - w) / (steps + 1 - w)                  "linear"
    1 / sqrt(t + 1 - w)                            "inverse_sqrt"

cosine and linear do not reach 0: the last update still moves. `rho_schedule` and `rho_warmup` do the same to rho.
inverse_sqrt for both, without warm-up, is what the paper's convergence theorem assumes: eta_t = eta / sqrt(t) and
rho_t = rho / sqrt(t) for t = 1, 2, ...

A method's own factors (MIRO's 10x, LP-FT's stages) multiply the learning rate. Auxiliary optimizers (DANN's
discriminator), inner steps (MLDG, Fish) and GAM's rho_norm are not scheduled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mecam.optim.registry import OPTIMIZERS, find
from mecam.optim.schedules import Factor, by_name
from mecam.recipe import Recipe, RecipeError


def lr_factor(recipe: Recipe) -> Factor:
    """Return the factor on lr as a function of the step."""
    return by_name(recipe.lr_schedule, updates=recipe.steps + 1, warmup_steps=recipe.warmup)


def rho_factor(recipe: Recipe) -> Factor:
    """Return the factor on rho as a function of the step."""
    return by_name(recipe.rho_schedule, updates=recipe.steps + 1, warmup_steps=recipe.rho_warmup)


def changes_lr(recipe: Recipe) -> bool:
    return recipe.lr_schedule != "constant" or recipe.warmup > 0


def changes_rho(recipe: Recipe) -> bool:
    return recipe.rho_schedule != "constant" or recipe.rho_warmup > 0


def initial_rho(recipe: Recipe) -> float | None:
    """Return the rho that the factor applies to: the recipe's or the optimizer's default; None without rho."""
    entry = OPTIMIZERS.get(recipe.optimizer)  # None: an older version or another process had this optimizer
    if entry is not None and entry.sharpness_aware is None:
        return None
    rho = recipe.optimizer_settings.get("rho", None if entry is None else entry.defaults.get("rho"))
    return None if rho is None else float(rho)


def check(recipe: Recipe) -> None:
    """Refuse a schedule of rho where there is no rho, or one whose values leave rho's allowed range."""
    if not changes_rho(recipe):
        return
    rho, factor = initial_rho(recipe), rho_factor(recipe)
    if rho is None:
        name = "rho_schedule" if recipe.rho_schedule != "constant" else "rho_warmup"
        raise RecipeError(f"{name} requires a sharpness-aware optimizer; {recipe.optimizer} has no rho")
    allowed = find(recipe.optimizer).hyperparameters["rho"]
    for step in (0, recipe.steps):  # the smallest is one of these
        allowed.check(f"{recipe.optimizer}, by rho_schedule at step {step}", "rho", rho * factor(step))


class Rates:
    """Set lr and rho of the optimizer's groups. Stateless: a resumed run sets the same values.

    Args:
        device: where scheduled values live as 0-dim tensors, filled in place, for steps that are CUDA graphs: a graph
            would freeze floats. None: floats.
    """

    def __init__(self, recipe: Recipe, optimizer: torch.optim.Optimizer, device: torch.device | None = None) -> None:
        self.optimizer, self.lr = optimizer, recipe.lr
        self.lr_factor, self.rho_factor = lr_factor(recipe), rho_factor(recipe)
        groups = optimizer.param_groups
        self.radii = [float(group["rho"]) for group in groups] if changes_rho(recipe) else None
        names = [name for name, changes in (("lr", changes_lr(recipe)), ("rho", changes_rho(recipe))) if changes]
        held = names if device is not None else []
        self._tensors = [{name: torch.zeros((), device=device) for name in held} for _ in groups]

    def set(self, step: int, rates: Sequence[float]) -> None:
        """Set the values of this step; `rates` are the factors on lr, one per group."""
        lr = self.lr * self.lr_factor(step)
        for number, (group, rate) in enumerate(zip(self.optimizer.param_groups, rates, strict=True)):
            group["lr"] = self._value(number, "lr", lr * rate)
            if self.radii is not None:
                group["rho"] = self._value(number, "rho", self.radii[number] * self.rho_factor(step))

    def _value(self, group: int, name: str, value: float) -> Any:
        """Return the value, or the tensor that a graph reads, filled with it, also after a checkpoint was loaded."""
        tensor: Tensor | None = self._tensors[group].get(name)
        return value if tensor is None else tensor.fill_(value)
