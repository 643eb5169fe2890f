"""Stochastic rounding of weights that are kept in half precision."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MISSING_BITS = {torch.bfloat16: 16, torch.float16: 13}  # of a float32's significand


def add_rounding_randomly(
    weights: Sequence[Tensor], offsets: Sequence[Tensor], scale: float | Tensor, generator: torch.Generator
) -> None:
    """weights <- weights + scale * offsets, each rounded up or down so that its expectation is exact."""
    exact = torch.cat([weight.reshape(-1).float() for weight in weights])
    exact += scale * torch.cat([offset.reshape(-1).float() for offset in offsets])
    rounded = round_randomly(exact, weights[0].dtype, generator)
    for weight, part in zip(weights, torch.split(rounded, [weight.numel() for weight in weights]), strict=True):
        weight.copy_(part.view(weight.shape))


def round_randomly(exact: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Round float32 numbers to neighbours in `dtype`, the nearer one more often: the expectation is the number."""
    bits = MISSING_BITS[dtype]
    noise = torch.randint(1 << bits, exact.shape, dtype=torch.int32, device=exact.device, generator=generator)
    rounded = ((exact.view(torch.int32) + noise) & -(1 << bits)).view(torch.float32)
    if dtype == torch.float16:  # below its smallest normal number the spacing is constant
        limits = torch.finfo(dtype)
        spacing = limits.eps * limits.smallest_normal
        rounded = torch.where(
            exact.abs() < limits.smallest_normal, (exact / spacing + noise / (1 << bits)).floor() * spacing, rounded
        )
    return torch.where(exact.isfinite(), rounded, exact)
