"""The style of a sample: mean and standard deviation of each channel over its positions."""

import torch
from torch import Tensor

EPS = 1e-6


def style(x: Tensor) -> tuple[Tensor, Tensor]:
    """mu and sqrt(var + eps), unbiased, of x (B, C, L): both (B, C, 1)."""
    var, mu = torch.var_mean(x, -1, keepdim=True)
    return mu, (var + EPS).sqrt()


def deviation(x: Tensor, dim: int) -> Tensor:
    """sqrt(var + eps) along `dim`, unbiased; eps inside the root keeps its gradient finite at var = 0."""
    return (x.var(dim, keepdim=True) + EPS).sqrt()
