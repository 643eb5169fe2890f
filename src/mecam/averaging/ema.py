"""EMA, the exponential moving average of the weights."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from mecam.averaging._mean import WeightMean
from mecam.averaging.base import Averaging, Weights
from mecam.hyperparameters import Choice, Hyperparameter


class EMA(Averaging):
    """Average with weights ∝ d^(n−k) on the weights θₖ of step k, after n steps.

        θ̄ₙ = Σₖ d^(n−k) θₖ / Σₖ d^(n−k)   or   θ̄ₙ = θ̄ₙ₋₁ + s (θₙ − θ̄ₙ₋₁),  s = (1−d) / (1−dⁿ)

    The usual recursion (`torch.optim.swa_utils`) has s = 1−d, which leaves the share d^(n−1) to the first step's
    weights: with d = 0.999, 74 % of the average after 300 steps. Here no step counts more than a later one.

    The averages are evaluated and selected among. Batch-norm statistics are averaged with the weights.
    """

    name: ClassVar[str] = "ema"
    decay = Hyperparameter(
        "share of the average that a step keeps", 0.999, high=1, open_high=True, search=Choice((0.99, 0.999, 0.9999))
    )

    def __init__(self, **settings: float) -> None:
        super().__init__(**settings)
        self.mean = WeightMean()

    def update(self, model: nn.Module, /) -> None:
        n = self.mean.count + 1
        self.mean.add(model.state_dict(), share=(1 - self.decay) / (1 - self.decay**n))

    def candidate(self, _model: nn.Module, /) -> Weights | None:
        return self.mean.weights() if self.mean.count else None

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean.state_dict()}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.mean = WeightMean.from_state_dict(state["mean"])
