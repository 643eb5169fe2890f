"""What MeCAM's perturbed passes add to a gradient, where it can be worked out by hand."""

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mecam.analysis.objective import Objective

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import expansion


class Weights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([3.0, 4.0], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.theta * x


class NoDomain:
    def active(self) -> AbstractContextManager[None]:
        return nullcontext()


def test_on_a_quadratic_the_two_gaps_cancel() -> None:
    # f = (θ₁² + 2 θ₂²) / 2 = 20.5: ∇f = (3, 8), H u = (3, 16) / √73, its length in ‖∇f‖ √265 / 73; uᵀHu = 137 / 73
    def loss(weights: Tensor, _: Tensor) -> Tensor:
        return (weights**2 * torch.tensor([1.0, 2.0])).sum() / 2

    objective = Objective(Weights(), loss, [(torch.ones(1, dtype=torch.float64), torch.zeros(1))])
    for rho, (sam, plain, meta, both, gap) in expansion.changes(objective, NoDomain()).items():  # type: ignore[arg-type]
        assert [sam, meta] == pytest.approx([0.1 * rho * 265**0.5 / 73] * 2)
        assert [plain, both] == pytest.approx([0, 0], abs=1e-12)
        assert gap == pytest.approx(0.1 * rho**2 * 137 / 73 / 20.5)
