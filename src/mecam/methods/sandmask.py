"""SAND-mask (Shahtalebi et al., 2021): AND-mask, softened by how much the domains' gradients vary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from mecam.methods.andmask import ANDMask
from mecam.optim.hyperparameters import Hyperparameter, LogUniform, Uniform

FLOOR = 1e-17  # of the variance, where all domains have the same gradient or there is only one


class SANDMask(ANDMask):
    """AND-mask with a mask between 0 and 1, nearer to 1 the less the domains' gradients vary:

    G = m ⊙ mean_d Gd / mean(m),  m = relu(tanh( k (|mean_d sign Gd| − τ) / Var_d(Gd) )),  Var unbiased

    The public default τ = 1 makes the bracket, and with it every update, zero: it is refused, and ours is 0.5.
    """

    name: ClassVar[str] = "sandmask"
    recordable: ClassVar[bool] = True
    hyperparameters: ClassVar[Mapping[str, Hyperparameter]] = {
        "tau": Hyperparameter(
            "agreement above which an entry counts", high=1, open_high=True, search=Uniform(0, 0.999)
        ),
        "k": Hyperparameter("steepness of the mask", open_low=True, search=LogUniform(-3, 5)),
    }

    def __init__(self, *, tau: float = 0.5, k: float = 10.0) -> None:
        super().__init__(tau=tau)
        self.k = float(k)

    def mask(self, gradients: Tensor) -> Tensor:
        # not var(0), which takes twenty times as long along an axis of a few entries; of one domain, 0
        variance = (gradients - gradients.mean(0)).square_().sum(0) / max(1, len(gradients) - 1)
        agreement = gradients.sign().mean(0).abs()
        return (self.k * (agreement - self.tau) / variance.clamp(min=FLOOR)).tanh().relu()
