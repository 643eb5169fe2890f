"""Styles of channels-last maps on a GPU, where a few operations of torch's would read and write the map many times."""

from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mecam.virtual._style import EPS


def has_kernels(x: Tensor) -> bool:
    """Whether x (B, C, L) is a map that the functions below take."""
    if not x.is_cuda or torch.compiler.is_compiling() or x.dtype == torch.float64:
        return False
    return _is_channels_last(x) and _kernels() is not None


def style_of_map(x: Tensor) -> tuple[Tensor, Tensor]:
    """mu and sqrt(var + eps) as of `style`, in single precision."""
    var, mu = _kernels().style(x)  # type: ignore[union-attr]
    return mu, (var + EPS).sqrt()


def affine_map(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """a x + b with constant a and b of shape (B, C, 1), in x's precision."""
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
    """The kernels, where there is a Triton that works."""
    try:
        from mecam.virtual import _kernels
    except Exception:  # without Triton, or with a broken one, torch's own operations do
        return None
    return _kernels
