"""The style of a sample: mean and standard deviation per channel.

Channels-last maps on a GPU have kernels that read and write the map once.
"""

from typing import Any

import torch
from torch import Tensor

from mecam._triton import kernels

EPS = 1e-6
KERNELS = "mecam.virtual._kernels"


def style(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mu and the unbiased sqrt(var + eps) of x (B, C, L): both (B, C, 1)."""
    var, mu = torch.var_mean(x, -1, keepdim=True)
    return mu, (var + EPS).sqrt()


def deviation(x: Tensor, dim: int) -> Tensor:
    """Return the unbiased sqrt(var + eps) along `dim`; eps inside the root keeps the gradient finite at var = 0."""
    return (x.var(dim, keepdim=True) + EPS).sqrt()


def has_kernels(x: Tensor) -> bool:
    """Return whether the functions below support the map x (B, C, L)."""
    if not x.is_cuda or torch.compiler.is_compiling() or x.dtype == torch.float64:
        return False
    return _is_channels_last(x) and kernels(KERNELS) is not None


def style_of_map(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mu and sqrt(var + eps) as `style` does, in float32."""
    var, mu = kernels(KERNELS).style(x)
    return mu, (var + EPS).sqrt()


def affine_map(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return a x + b with constant a and b (B, C, 1), in the dtype of x."""
    out: Tensor = _Affine.apply(x, a, b)  # type: ignore[no-untyped-call]
    return out


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return kernels(KERNELS).affine(x, a, b)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (a,) = ctx.saved_tensors
        if torch.is_grad_enabled() or not _is_channels_last(gradient):  # create_graph: a kernel has no derivative
            return (gradient * a).to(gradient.dtype), None, None
        return kernels(KERNELS).affine(gradient, a, None), None, None


def _is_channels_last(x: Tensor) -> bool:
    _, channels, positions = x.shape
    return x.stride() == (channels * positions, 1, channels)
