"""The style of a sample: mean and standard deviation per channel."""

import torch
from torch import Tensor

EPS = 1e-6


def style(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mu and the unbiased sqrt(var + eps) of x (B, C, L): both (B, C, 1)."""
    var, mu = torch.var_mean(x, -1, keepdim=True)
    return mu, (var + EPS).sqrt()


def deviation(x: Tensor, dim: int) -> Tensor:
    """Return the unbiased sqrt(var + eps) along `dim`; eps inside the root keeps the gradient finite at var = 0."""
    return (x.var(dim, keepdim=True) + EPS).sqrt()
