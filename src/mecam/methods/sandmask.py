"""SAND-mask (Shahtalebi et al., 2021): AND-mask, softened by the variance of the domains' gradients."""

from __future__ import annotations

from torch import Tensor

from mecam.hyperparameters import Hyperparameter, LogUniform, Uniform
from mecam.methods.andmask import ANDMask

FLOOR = 1e-17  # smallest variance, for equal gradients or a single domain


class SANDMask(ANDMask):
    """AND-mask with a mask between 0 and 1 that grows as the variance of the domains' gradients shrinks:

    G = m ⊙ mean_d Gd / mean(m),  m = relu(tanh( k (|mean_d sign Gd| − τ) / Var_d(Gd) )),  Var unbiased

    The default is 0.5. The public default, τ = 1, makes every update zero and is refused.
    """

    name = "sandmask"
    capturable = True
    tau = Hyperparameter("agreement above which an entry counts", 0.5, high=1, open_high=True, search=Uniform(0, 0.999))
    k = Hyperparameter("steepness of the mask", 10.0, open_low=True, search=LogUniform(-3, 5))

    def mask(self, gradients: Tensor) -> Tensor:
        # not var(0), which takes twenty times as long along a short axis; 0 for a single domain
        variance = (gradients - gradients.mean(0)).square_().sum(0) / max(1, len(gradients) - 1)
        agreement = gradients.sign().mean(0).abs()
        mask: Tensor = (self.k * (agreement - self.tau) / variance.clamp(min=FLOOR)).tanh().relu()
        return mask
