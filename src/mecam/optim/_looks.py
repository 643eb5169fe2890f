"""What optimizers share that take all of their passes in some steps only: who decides, and when."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from mecam.optim._options import is_capturing
from mecam.optim.sharpness import SharpnessAware


class Looks(SharpnessAware):
    """An optimizer with steps of two kinds: looks, which take all passes, and the steps between."""

    _planned: bool | None = None  # whether the coming step is a look, once that is decided

    @abstractmethod
    def is_due(self) -> bool:
        """Whether the coming step is a look; asked once for each step."""

    def plan(self) -> bool:
        """Whether the next step is a look. Each call is for another step."""
        self._planned = bool(self.is_due())
        return self._planned

    def looks(self) -> bool:
        """What was planned for this step."""
        if self._planned is None:
            if is_capturing():
                raise RuntimeError(
                    f"{type(self).__name__} decides on the host which steps take all passes: a captured step would "
                    "always be of one kind. Call plan() before each step, and capture one graph for each of its answers"
                )
            self.plan()
        looks, self._planned = bool(self._planned), None
        return looks

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._planned = None
