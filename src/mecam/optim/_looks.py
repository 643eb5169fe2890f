"""Optimizers that take all of their passes in some steps only."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from mecam.optim._options import is_capturing
from mecam.optim.sharpness import SharpnessAware


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
