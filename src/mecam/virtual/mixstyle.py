"""MixStyle: give every sample a style between its own and another sample's (Zhou et al., ICLR 2021)."""

import torch
from torch import Tensor

from mecam.virtual._draws import Draw
from mecam.virtual._features import PartnerDomain
from mecam.virtual._style import affine_map, has_kernels, style, style_of_map


def mix_style(x: Tensor, lam: Tensor, partner: Tensor) -> Tensor:
    """(x - mu)/sig * (lam sig + (1 - lam) sig_j) + lam mu + (1 - lam) mu_j; x is (B, C, L), mu and sig detached.

    Computed as a x + b with one a and b per sample and channel, in the higher of the two precisions.
    """
    dtype = torch.promote_types(x.dtype, lam.dtype)
    fast = has_kernels(x) and dtype == torch.float32
    mu, sig = style_of_map(x.detach()) if fast else style(x.detach().to(dtype))
    lam = lam[:, None, None]
    new_mu = lam * mu + (1 - lam) * mu[partner]
    a = (lam * sig + (1 - lam) * sig[partner]) / sig
    b = new_mu - mu * a
    if fast:
        return affine_map(x, a, b)
    return torch.addcmul(b, x.to(dtype), a)


class MixStyle(PartnerDomain):
    """MixStyle on the output of the attached layers; lam ~ Beta(alpha, alpha) per sample.

    `domains=None` pairs samples by a random permutation. `domains=S` reads the batch as S equal blocks in order, and
    every partner comes from another block. `p` is the probability that a call of a layer mixes: 1 here, for MeCAM's
    meta pass; 0.5 in the original, which trains with it. A batch of one sample and a map of one position, whose style
    is undefined, are not changed.
    """

    name = "mixstyle"

    def _mix(self, x: Tensor, draw: Draw) -> Tensor:
        count, _, positions = x.shape
        partner = draw.partner(count, self.domains)
        if count == 1 or positions == 1:
            return x
        return mix_style(x, draw.beta(self.alpha, count), partner)
