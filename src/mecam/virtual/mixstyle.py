"""MixStyle: give every sample a style between its own and another sample's (Zhou et al., ICLR 2021)."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mecam.virtual import _checks
from mecam.virtual._draws import Draw
from mecam.virtual._features import FeatureDomain
from mecam.virtual._style import style


def mix_style(x: Tensor, lam: Tensor, partner: Tensor) -> Tensor:
    """(x - mu)/sig * (lam sig + (1 - lam) sig_j) + lam mu + (1 - lam) mu_j; x is (B, C, L), mu and sig detached.

    As a x + b with one a and b for each sample and channel, so that the map is read and written once. x may be of lower
    precision than lam, which everything is computed in.
    """
    mu, sig = style(x.detach().to(lam.dtype))
    lam = lam[:, None, None]
    new_mu = lam * mu + (1 - lam) * mu[partner]
    a = (lam * sig + (1 - lam) * sig[partner]) / sig
    b = new_mu - mu * a
    if x.dtype == a.dtype or torch.compiler.is_compiling():
        return torch.addcmul(b, x.to(a.dtype), a).to(x.dtype)
    out: Tensor = _Affine.apply(x, a, b)  # type: ignore[no-untyped-call]
    return out


class _Affine(torch.autograd.Function):
    """a x + b with a and b of higher precision than x, and constant; nothing of theirs is as large as x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return torch.addcmul(b, x, a, out=torch.empty_like(x))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (a,) = ctx.saved_tensors
        return torch.mul(gradient, a, out=torch.empty_like(gradient)), None, None


class MixStyle(FeatureDomain):
    """MixStyle on the output of the attached layers; lam ~ Beta(alpha, alpha), one a sample.

    `domains=None` pairs samples by a random permutation. `domains=S` reads the batch as S equal blocks in order, and
    every partner comes from another block. `p` is the probability that a call of a layer mixes at all: 1 here, for
    MeCAM's meta pass; 0.5 in the original, which trains with it. A batch of one sample and a map of one position, whose
    style is undefined, stay as they are.
    """

    def __init__(
        self,
        p: float = 1.0,
        alpha: float = 0.1,
        *,
        domains: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(p=p, generator=generator)
        self.alpha = _checks.positive("alpha", alpha)
        self.domains = _checks.domain_count(domains)

    def _mix(self, x: Tensor, draw: Draw) -> Tensor:
        count, _, positions = x.shape
        partner = draw.partner(count, self.domains)
        if count == 1 or positions == 1:
            return x
        return mix_style(x, draw.beta(self.alpha, count), partner)
