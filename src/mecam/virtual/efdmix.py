"""EFDMix: mix whole feature distributions, not only their first two moments (Zhang et al., CVPR 2022)."""

import torch
from torch import Tensor

from mecam.virtual._draws import Draw
from mecam.virtual._features import PartnerDomain


def mix_distribution(x: Tensor, lam: Tensor, partner: Tensor) -> Tensor:
    """x + (1 - lam)(matched - stopgrad(x)), `matched` the partner's sorted values at the ranks of x; x is (B, C, L)."""
    # Stable, since ties are common after a ReLU and an unstable order differs between devices.
    values, order = x.sort(dim=-1, stable=True)
    matched = torch.zeros_like(x).scatter(-1, order, values[partner])
    return x + (1 - lam[:, None, None]) * (matched - x.detach())


class EFDMix(PartnerDomain):
    """Exact feature distribution mixing on the output of the attached layers; lam ~ Beta(alpha, alpha) per sample.

    The partner's values carry gradient. `domains` and `p` as in MixStyle; the original trains with p=0.5. A batch of
    one sample is not changed; a map of one position is mixed.
    """

    name = "efdmix"

    def _mix(self, x: Tensor, draw: Draw) -> Tensor:
        count = x.shape[0]
        partner = draw.partner(count, self.domains)
        return x if count == 1 else mix_distribution(x.to(draw.dtype), draw.beta(self.alpha, count), partner)
