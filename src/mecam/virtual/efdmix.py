"""EFDMix: mix whole feature distributions, not only their first two moments (Zhang et al., CVPR 2022)."""

import torch
from torch import Tensor

from mecam.virtual import _checks
from mecam.virtual._draws import Draw
from mecam.virtual._features import FeatureDomain


def mix_distribution(x: Tensor, lam: Tensor, partner: Tensor) -> Tensor:
    """x + (1 - lam)(matched - stopgrad(x)), `matched` the partner's sorted values at the ranks of x; x is (B, C, L)."""
    # Stable, since ties are common after a ReLU and an unstable order differs between devices.
    values, order = x.sort(dim=-1, stable=True)
    matched = torch.zeros_like(x).scatter(-1, order, values[partner])
    return x + (1 - lam[:, None, None]) * (matched - x.detach())


class EFDMix(FeatureDomain):
    """Exact feature distribution mixing on the output of the attached layers; lam ~ Beta(alpha, alpha), one a sample.

    The partner's values carry gradient. `domains` and `p` as in MixStyle; the original trains with p=0.5. A batch of
    one sample stays as it is; a map of one position has a distribution, one value, and is mixed.
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
        count = x.shape[0]
        partner = draw.partner(count, self.domains)
        return x if count == 1 else mix_distribution(x.to(draw.dtype), draw.beta(self.alpha, count), partner)
