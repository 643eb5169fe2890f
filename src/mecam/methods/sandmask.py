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
    weighted = True
    capturable = True
    on_features = True
    hyperparameters = {
        "tau": Hyperparameter(
            "agreement above which an entry counts", high=1, open_high=True, search=Uniform(0, 0.999)
        ),
        "k": Hyperparameter("steepness of the mask", open_low=True, search=LogUniform(-3, 5)),
    }

    def __init__(self, *, tau: float = 0.5, k: float = 10.0) -> None:
        super().__init__(tau=tau)
        self.k = float(k)

    def mask(self, gradients: Tensor) -> Tensor:
        # not var(0), which takes twenty times as long along a short axis; 0 for a single domain
        variance = (gradients - gradients.mean(0)).square_().sum(0) / max(1, len(gradients) - 1)
        agreement = gradients.sign().mean(0).abs()
        return (self.k * (agreement - self.tau) / variance.clamp(min=FLOOR)).tanh().relu()
