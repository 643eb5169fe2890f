"""The style of a sample: mean and standard deviation of each channel over its positions."""

from torch import Tensor

EPS = 1e-6


def style(x: Tensor) -> tuple[Tensor, Tensor]:
    """mu and sqrt(var + eps), unbiased, of x (B, C, L): both (B, C, 1)."""
    return x.mean(-1, keepdim=True), deviation(x, -1)


def deviation(x: Tensor, dim: int) -> Tensor:
    """sqrt(var + eps) along `dim`, unbiased; eps inside the root keeps its gradient finite at var = 0."""
    return (x.var(dim, keepdim=True) + EPS).sqrt()
