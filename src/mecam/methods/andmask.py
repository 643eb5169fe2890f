"""AND-mask (Parascandolo et al., 2021): learn only where the domains agree on the sign."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mecam.hyperparameters import Hyperparameter, Uniform
from mecam.methods._gradients import domain_gradients, fill, stacked
from mecam.methods.base import Batch, Method
from mecam.models.network import Network

EPS = 1e-10  # a mask of zeros gives a gradient of zeros


class ANDMask(Method):
    """Average the domains' gradients Gd, without the entries on whose sign too few domains agree:

    G = m ⊙ mean_d Gd / mean(m),  m = [ |mean_d sign Gd| ≥ τ ],  one tensor of weights at a time
    """

    name = "andmask"
    weighted = True
    capturable = True
    on_features = True
    tau = Hyperparameter("agreement from which an entry counts; 1: all domains", 1.0, high=1, search=Uniform(0.5, 1))
    surgery = True

    def mask(self, gradients: Tensor) -> Tensor:
        """Return the mask of one tensor, given the domains' gradients along the first axis."""
        agree: Tensor = gradients.sign().mean(0).abs() >= self.tau
        return agree.to(gradients.dtype)

    def gradient(
        self, network: Network, batch: Batch, draw: Any, state: Any, *, graph: bool = False
    ) -> tuple[Tensor, Any]:
        value, gradients = domain_gradients(network, batch)
        masked = {}
        for name, of_domains in stacked(gradients):
            mask = self.mask(of_domains)
            masked[name] = mask * of_domains.mean(0) / (EPS + mask.mean())
        fill(network, masked)
        return value, state
