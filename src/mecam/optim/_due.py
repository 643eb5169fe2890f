"""Decide which steps take a method's passes: all, late ones, or every n-th."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from torch import Tensor

from mecam.hyperparameters import Hyperparameter
from mecam.optim._options import is_capturing
from mecam.optim._wrapper import Wrapper

START = Hyperparameter("plain steps before the method begins", integer=True)
EVERY = Hyperparameter("steps from one with the method's passes to the next", low=1, integer=True)


class Due(Wrapper):
    """An optimizer with plain steps besides the method's, if `start` or `every` is given."""

    transient = (*Wrapper.transient, "_planned")
    every: int
    _planned: bool | None = None  # whether the next step is due, once decided

    def _set_due(self, start: int, every: int) -> None:
        START.check(type(self).__name__, "start", start)
        EVERY.check(type(self).__name__, "every", every)
        self.start, self.every = int(start), int(every)

    @property
    def varies(self) -> bool:
        """Whether there are two kinds of steps."""
        return self.start > 0 or self.every > 1

    def is_due(self) -> bool:
        """Return whether the next step takes the method's passes. Called once per step, on the host."""
        if not self.start and self.every == 1:
            return True
        step, key = self.first("taken"), self.key("begun")
        if isinstance(step, Tensor):  # the device counts the steps; the host keeps a count of its own
            begun = self.param_groups[0].get(key)
            step = int(step) if begun is None else begun
        for group in self.param_groups:
            group[key] = step + 1
        due: bool = step >= self.start and (step - self.start) % self.every == 0
        return due

    def plan(self) -> Hashable:
        """Decide whether the next step is due, and return its kind. Steps of one kind can share a CUDA graph.

        Call it before each step to replay graphs; otherwise `step` calls it.
        """
        self._planned = bool(self.is_due())
        return self._planned

    def _take_plan(self) -> bool:
        """Return what was planned for this step."""
        if self._planned is None:
            if self.varies and is_capturing():
                raise RuntimeError(
                    f"{type(self).__name__} decides on the host which steps take all passes: a captured step would "
                    "always be of one kind. Call plan() before each step, and capture one graph per answer"
                )
            self.plan()
        due, self._planned = bool(self._planned), None
        return due

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._planned = None
