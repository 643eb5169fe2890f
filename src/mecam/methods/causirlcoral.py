"""CausIRL with CORAL (Chevalley et al., 2022): match two random mixtures of the domains."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from mecam.methods.causirlmmd import CausIRLMMD


class CausIRLCORAL(CausIRLMMD):
    """Match the means and covariances of two groups of images, in which the domains have random shares.

    CE + γ [mean((μ₁ − μ₂)²) + mean((C₁ − C₂)²)],   C the unbiased covariance; the groups are those of CausIRL with MMD
    """

    name = "causirlcoral"
    capturable = True
    gamma = replace(CausIRLMMD.gamma, meaning="weight of the differences")

    def distance(self, z: Tensor, first: Tensor, second: Tensor) -> Tensor:
        features = z.shape[1]
        means = (first - second) @ z
        centred = z - (first > 0)[:, None] * (first @ z) - (second > 0)[:, None] * (second @ z)
        # ‖C₁ − C₂‖² = sᵀ (Z Zᵀ)² s, the square elementwise: images by images, not features by features
        signs = _unbiased(first) - _unbiased(second)
        covariances = signs @ (centred @ centred.T).square() @ signs
        return means.square().sum() / features + covariances / features**2


def _unbiased(shares: Tensor) -> Tensor:
    """Return 1/(n−1) in place of 1/n."""
    count = (shares > 0).sum().clamp(min=2)
    return shares * count / (count - 1)
