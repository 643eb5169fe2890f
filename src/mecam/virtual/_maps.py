"""Styles of channels-last maps on a GPU, by kernels that read and write the map once."""

from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mecam.virtual._style import EPS


def has_kernels(x: Tensor) -> bool:
    """Return whether the functions below support the map x (B, C, L)."""
    if not x.is_cuda or torch.compiler.is_compiling() or x.dtype == torch.float64:
        return False
    return _is_channels_last(x) and _kernels() is not None


def style_of_map(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mu and sqrt(var + eps) as `style` does, in float32."""
    var, mu = _kernels().style(x)  # type: ignore[union-attr]
    return mu, (var + EPS).sqrt()


def affine_map(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return a x + b with constant a and b (B, C, 1), in the dtype of x."""
    out: Tensor = _Affine.apply(x, a, b)  # type: ignore[no-untyped-call]
    return out


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return _kernels().affine(x, a, b)  # type: ignore[no-any-return, union-attr]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (a,) = ctx.saved_tensors
        if not _is_channels_last(gradient):
            return (gradient * a).to(gradient.dtype), None, None
        return _kernels().affine(gradient, a, None), None, None  # type: ignore[union-attr]


def _is_channels_last(x: Tensor) -> bool:
    _, channels, positions = x.shape
    return x.stride() == (channels * positions, 1, channels)


@cache
def _kernels() -> ModuleType | None:
    """Return the kernels if Triton works."""
    try:
        from mecam.virtual import _kernels
    except Exception:  # Triton is missing or broken: torch operations are used
        return None
    return _kernels
