"""LookSAM (Liu et al., 2022)."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, cast

from mecam.hyperparameters import Choice, Hyperparameter
from mecam.optim._options import is_capturing, radius
from mecam.optim._passes import GradAt
from mecam.optim.sharpness import SharpnessAware
from mecam.optim.vector import Vector, along, norm, ratio, unit


class Looks(SharpnessAware):
    """An optimizer with two kinds of steps: looks, which take all passes, and plain steps."""

    _planned: bool | None = None  # whether the next step is a look, once decided

    @abstractmethod
    def is_due(self) -> bool:
        """Return whether the next step is a look. Called once per step."""

    def plan(self) -> bool:
        """Decide and return whether the next step is a look. Call it once per step."""
        self._planned = bool(self.is_due())
        return self._planned

    def looks(self) -> bool:
        """Return what was planned for this step."""
        if self._planned is None:
            if is_capturing():
                raise RuntimeError(
                    f"{type(self).__name__} decides on the host which steps take all passes: a captured step would "
                    "always be of one kind. Call plan() before each step, and capture one graph per answer"
                )
            self.plan()
        looks, self._planned = bool(self._planned), None
        return looks

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._planned = None


class LookSAM(Looks):
    """SAM every k-th step; between, the part of SAM's gradient across g is remembered and added.

        t mod k = 0:  g ← gₛ = ∇f(θ + ρ n(g)),  v = gₛ − part of gₛ along g
        otherwise:    g ← g + α (‖g‖/‖v‖) v

    A parameter without a gradient in some step does not move in it. Two passes in one step of k, one in the others. The
    host counts the steps that were taken, and decides before each: where the device may leave one out
    (nonfinite="skip"), it waits for that.
    """

    keeps = ("v",)
    hyperparameters = {
        "rho": radius(0.1),
        "alpha": Hyperparameter("weight of the remembered part", default=0.7, search=Choice((0.5, 0.7, 1.0))),
        "k": Hyperparameter(
            "steps from one look to the next", default=10, low=1, integer=True, shared=True, search=Choice((2, 5, 10))
        ),
    }

    def is_due(self) -> bool:
        return self.kept("v") is None or int(self.first("taken")) % self.first("k") == 0

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, alpha = self.values("rho", "alpha")
        g = grad_at()
        if self.looks():
            g_s = grad_at(rho * unit(g))
            self.keep("v", g_s - along(g_s, g))
            return g_s
        v = cast("Vector", self.kept("v")).within(g)  # there is one: without it a look is due
        return g + alpha * ratio(norm(g), norm(v)) * v
