"""No averaging: the weights of the selected step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from mecam.averaging.base import Weights
from mecam.optim.hyperparameters import Hyperparameter


class NoAveraging:
    """The model's own weights, at the step that the validation selects."""

    name: ClassVar[str] = "none"
    hyperparameters: ClassVar[Mapping[str, Hyperparameter]] = {}
    needs_bn_update: ClassVar[bool] = False

    def update(self, _model: nn.Module, /) -> None:
        pass

    def candidate(self, _model: nn.Module, /) -> Weights | None:
        return None

    def evaluated(self, _step: int, _loss: float, _model: nn.Module, /) -> bool:
        return False

    def final(self) -> Weights | None:
        return None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, _state: dict[str, Any], /) -> None:
        pass
