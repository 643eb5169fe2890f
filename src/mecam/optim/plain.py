"""One pass per step: g = ∇f(θ), handed to the base optimizer."""

from __future__ import annotations

from mecam.optim._passes import GradAt
from mecam.optim.sharpness import SharpnessAware
from mecam.optim.vector import Vector


class Plain(SharpnessAware):
    """Step the base optimizer as it is, with the options, counters and checkpoints of the sharpness-aware family.

    A loop that takes any optimizer of the family then takes Adam or SGD as well. Nothing is copied: neither weights nor
    buffers.
    """

    passes = 1

    def gradient(self, grad_at: GradAt) -> Vector:
        return grad_at()
