"""DSU: treat the styles of a batch as uncertain and draw new ones around them (Li et al., ICLR 2022)."""

import torch
from torch import Tensor

from mecam.virtual._draws import Draw
from mecam.virtual._features import FeatureDomain
from mecam.virtual._style import deviation, style


def perturb_style(x: Tensor, noise_mu: Tensor, noise_sig: Tensor) -> Tensor:
    """(x - mu)/sig * (sig + e2 S_sig) + mu + e1 S_mu, S the deviation over the batch; x (B, C, L), e (B, C)."""
    mu, sig = style(x)
    new_mu = mu + noise_mu[..., None] * deviation(mu, 0)
    new_sig = sig + noise_sig[..., None] * deviation(sig, 0)
    return (x - mu) / sig * new_sig + new_mu


class DSU(FeatureDomain):
    """Domain shifts with uncertainty on the output of the attached layers.

    e1, e2 ~ N(0, 1) per sample and channel; statistics carry gradient. The original trains with p=0.5. Under DDP the
    deviation is over each rank's part of the batch. A batch of one sample and a map of one position are not changed.
    """

    name = "dsu"

    def __init__(self, p: float = 1.0, *, generator: torch.Generator | None = None) -> None:
        super().__init__(p=p, generator=generator)

    def _mix(self, x: Tensor, draw: Draw) -> Tensor:
        count, channels, positions = x.shape
        if count == 1 or positions == 1:
            return x
        return perturb_style(x.to(draw.dtype), draw.normal(count, channels), draw.normal(count, channels))
