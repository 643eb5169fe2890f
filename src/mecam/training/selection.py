"""Select the step whose weights are kept: by source validation, the last one, or by the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mecam.recipe import Selection


class Best:
    """The best step so far; ties go to the earliest. Only the oracle uses the target."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self.step: int | None = None
        self.value = -1.0
        self.weights: dict[str, Tensor] = {}
        self.stopped = False  # whether the averaging has ended training

    def offer(self, step: int, validation: float | None, oracle: float | None, weights: Mapping[str, Tensor]) -> None:
        """Consider the weights evaluated after this step."""
        value = {"validation": validation, "oracle": oracle, "last": float(step)}[self.selection]
        if value is not None and value > self.value:
            self.step, self.value = step, value
            self.weights = {name: tensor.detach().clone() for name, tensor in weights.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "value": self.value, "weights": self.weights, "stopped": self.stopped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.value, self.stopped = state["step"], state["value"], state["stopped"]
        self.weights = state["weights"]
