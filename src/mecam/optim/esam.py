"""ESAM, Efficient SAM (Du et al., 2022): its stochastic weight perturbation."""

from __future__ import annotations

import torch

from mecam.hyperparameters import Choice, Hyperparameter
from mecam.optim._options import is_capturing, radius
from mecam.optim._passes import GradAt
from mecam.optim._two_passes import TwoPasses
from mecam.optim.vector import Vector, unit


class ESAM(TwoPasses):
    """SAM that perturbs a random part of the parameter tensors, each with probability β, 1/β times as far.

        g ← ∇f(θ + (1/β) · mask · ρ n(g))

    With beta = 1 this is SAM. The method's other half, training on the samples whose loss rises most, needs per-sample
    losses; a closure that returns one scalar has no room for it, and it is left out. The paper masks single weights,
    its code whole tensors, as here. The mask is drawn from `seed` and the number of steps taken, so that all ranks of a
    distributed run and a resumed run draw the same.

    Args:
        seed: seed of the masks.
    """

    decides_on_host = True
    seed: int
    options = {"seed": 0}
    hyperparameters = {
        "rho": radius(0.05),
        "beta": Hyperparameter(
            "probability with which a tensor is perturbed",
            default=0.6,
            high=1,
            open_low=True,
            search=Choice((0.5, 0.6, 1.0)),
        ),
    }

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, beta = self.values("rho", "beta")
        e = (rho / beta) * unit(grad_at())
        return grad_at(e.select(self._mask()))

    def _mask(self) -> list[bool]:
        if is_capturing():
            raise RuntimeError("ESAM draws its mask on the host: a captured step would reuse one mask")
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + int(self.first("taken")))
        # drawn in the groups' order: a Vector's depends on how the parameters are sharded
        draws = {id(p): torch.rand((), generator=generator).item() for p in self._all_parameters()}
        pairs = zip(self._space.parameters, self.per_parameter("beta"), strict=True)
        return [draws[id(p)] < float(beta) for p, beta in pairs]
