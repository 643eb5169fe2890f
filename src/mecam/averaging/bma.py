"""BMA, the moving average with weights from a Beta distribution (CLIPood: Shu et al., 2023)."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from mecam.averaging._mean import WeightMean
from mecam.averaging.base import Averaging, Weights
from mecam.hyperparameters import Choice, Hyperparameter


class BMA(Averaging):
    """Average the initial weights θ₀ and those of every step k of n, with weights from a symmetric Beta distribution.

        θ̄ₖ = Σⱼ wⱼ θⱼ / Σⱼ wⱼ,  j ≤ k,   wⱼ = xⱼ^(b−1) (1−xⱼ)^(b−1),  xⱼ = (j + ½) / (n + 1)

    With b < 1 the pretrained and the last weights count most, with b = 1 all count the same.

    The averages are evaluated and selected among. Batch-norm statistics are averaged with the weights.
    """

    name: ClassVar[str] = "bma"
    beta = Hyperparameter(
        "b, both parameters of the Beta distribution", 0.5, high=10, open_low=True, search=Choice((0.1, 0.5, 1))
    )

    def __init__(self, **settings: float) -> None:
        super().__init__(**settings)
        self.steps, self.mean, self.total = 0, WeightMean(), 0.0

    def begin(self, model: nn.Module, steps: int, /) -> None:
        self.steps = steps
        self.update(model)

    def update(self, model: nn.Module, /) -> None:
        if self.mean.count > self.steps:
            raise ValueError(f"BMA: update was called more than {self.steps} times; call begin(model, steps) first")
        x = (self.mean.count + 0.5) / (self.steps + 1)
        weight = (x * (1 - x)) ** (self.beta - 1)
        self.total += weight
        self.mean.add(model.state_dict(), share=weight / self.total)

    def candidate(self, _model: nn.Module, /) -> Weights | None:
        return self.mean.weights()

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean.state_dict(), "total": self.total}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.mean, self.total = WeightMean.from_state_dict(state["mean"]), state["total"]
