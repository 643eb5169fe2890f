"""Select the step whose weights are kept: by source validation, the last one, or by the oracle; end training early."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mecam.recipe import Selection


class Best:
    """The best step so far; ties go to the earliest. Only the oracle uses the target.

    Args:
        patience: evaluations without better source validation that end training; 0 for none.
    """

    def __init__(self, selection: Selection, patience: int = 0) -> None:
        self.selection, self.patience = selection, patience
        self.step: int | None = None
        self.value = -1.0
        self.weights: dict[str, Tensor] = {}
        self.validation, self.waited = -1.0, 0  # the best source validation, and the evaluations since
        self.stopped = False  # whether averaging or patience has ended training

    def offer(self, step: int, validation: float | None, oracle: float | None, weights: Mapping[str, Tensor]) -> None:
        """Consider the weights evaluated after this step."""
        value = {"validation": validation, "oracle": oracle, "last": float(step)}[self.selection]
        if value is not None and value > self.value:
            self.step, self.value = step, value
            self.weights = {name: tensor.detach().clone() for name, tensor in weights.items()}
        self.waited += 1
        if validation is not None and validation > self.validation:
            self.validation, self.waited = validation, 0
        self.stopped = 0 < self.patience <= self.waited

    def state_dict(self) -> dict[str, Any]:
        names = ("step", "value", "weights", "validation", "waited", "stopped")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():  # older checkpoints lack those of patience
            setattr(self, name, value)
