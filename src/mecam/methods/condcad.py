"""CondCAD, the conditional contrastive adversarial domain bottleneck (Ruan et al., 2022)."""

from __future__ import annotations

from torch import Tensor

from mecam.methods.cad import CAD


class CondCAD(CAD):
    """CAD among the images of the same class.

        CE − λ (τ/0.07) mean_i log Σ_{j: d_j ≠ d_i} p_ij,   p_ij ∝ exp(z_i·z_j / τ) over j ≠ i of the class of i

    It bounds the information that the features have about the domain given the class. Images whose class is in no other
    domain of the batch are left out.
    """

    name = "condcad"
    capturable = True

    def compared(self, labels: Tensor) -> Tensor:
        return super().compared(labels) & (labels[:, None] == labels)
