"""A frozen batch norm folded into the convolution before it, and both fused with what follows; differentiable.

    y = act(conv(x, s w) + (beta - s mean) + residual),    s = gamma / sqrt(var + eps)

Frozen statistics are constants, so this is the same function of w, gamma and beta. What it saves is memory traffic,
which is most of the time of a convolution network on a GPU: the output of the convolution is touched once more instead
of three or four times, and is not kept for the backward pass. The small pieces (`fold`, `finish`, `start_back`,
`unfold`) are single kernels where Triton is at hand, and the plain operations below elsewhere.
"""

from __future__ import annotations

import functools
import math
from types import ModuleType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

NONE, RELU, RELU6 = -1.0, math.inf, 6.0  # where an activation cuts off; NONE: there is none


def fold_frozen(network: nn.Module) -> None:
    """Let the network's convolutions take in their batch norms wherever these are in eval mode. First order only."""
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module.folds = True  # type: ignore[assignment]


def conv_bn(
    x: Tensor, conv: nn.Conv2d, bn: nn.BatchNorm2d, act: float = RELU, residual: Tensor | None = None
) -> Tensor:
    """act(bn(conv(x)) + residual)"""
    if getattr(bn, "folds", False) and not bn.training:
        statistics = Statistics(bn.running_mean, bn.running_var, bn.eps)  # type: ignore[arg-type]
        if isinstance(conv, PaddedConvolution):
            x = conv.pad(x)
        geometry = Geometry(conv.stride, conv.padding, conv.dilation, conv.groups)  # type: ignore[arg-type]
        tensors = x, conv.weight, bn.weight, bn.bias, residual
        out: Tensor = FoldedConvolution.apply(*tensors, statistics, geometry, act)  # type: ignore[no-untyped-call]
        return out
    z: Tensor = bn(conv(x))
    if residual is not None:
        z += residual
    return z if act == NONE else z.relu_() if act == RELU else nn.functional.hardtanh_(z, 0.0, act)


@runtime_checkable
class PaddedConvolution(Protocol):
    """A convolution before which zeros are added that it cannot add itself."""

    def pad(self, x: Tensor, /) -> Tensor: ...


class Statistics(NamedTuple):
    """A frozen batch norm's."""

    mean: Tensor
    var: Tensor
    eps: float


class Geometry(NamedTuple):
    """Of a convolution, its kernel apart."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


class FoldedConvolution(torch.autograd.Function):
    """The function at the top of this file; in autocast's type where autocast is on."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        gamma: Tensor,
        beta: Tensor,
        residual: Tensor | None,
        statistics: Statistics,
        geometry: Geometry,
        act: float,
    ) -> Tensor:
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        pieces = _pieces(x)
        x = x.to(dtype).contiguous(memory_format=torch.channels_last)
        folded, bias = pieces.fold(weight, gamma, beta, statistics, dtype)
        z = torch.ops.aten.convolution(x, folded, None, *geometry[:3], False, (0, 0), geometry.groups)
        z = z.contiguous(memory_format=torch.channels_last)
        if residual is not None:
            residual = residual.to(dtype).contiguous(memory_format=torch.channels_last)
        y = pieces.finish(z, bias, residual, act)
        ctx.save_for_backward(x, folded, None if act == NONE else y, weight, gamma)
        ctx.statistics, ctx.geometry, ctx.act, ctx.pieces = statistics, geometry, act, pieces
        return y  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, folded, y, weight, gamma = ctx.saved_tensors
        geometry = ctx.geometry
        dz, sums = ctx.pieces.start_back(dy.contiguous(memory_format=torch.channels_last), y, ctx.act)
        wanted = [ctx.needs_input_grad[0], True, False]
        dx, d_folded, _ = torch.ops.aten.convolution_backward(
            dz, x, folded, None, *geometry[:3], False, (0, 0), geometry.groups, wanted
        )
        d_weight, d_gamma, d_beta = ctx.pieces.unfold(d_folded, sums, weight, gamma, ctx.statistics)
        return dx, d_weight, d_gamma, d_beta, dz if ctx.needs_input_grad[4] else None, None, None, None


def _pieces(x: Tensor) -> Any:
    return (_kernels() if x.is_cuda else None) or Plain


@functools.cache
def _kernels() -> ModuleType | None:
    """The pieces as Triton kernels, where there is a Triton that works."""
    try:
        from mecam.models import _kernels
    except Exception:  # without Triton, or with a broken one, the plain pieces do
        return None
    return _kernels


class Plain:
    """The pieces in torch's own operations."""

    @staticmethod
    def fold(
        weight: Tensor, gamma: Tensor, beta: Tensor, statistics: Statistics, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """The kernel and the bias of conv and batch norm together."""
        mean, var, eps = statistics
        scale = gamma * (var + eps).rsqrt()
        return (weight * scale[:, None, None, None]).to(dtype), beta - mean * scale

    @staticmethod
    def finish(z: Tensor, bias: Tensor, residual: Tensor | None, act: float) -> Tensor:
        """act(z + bias + residual), in z's place."""
        z += bias[:, None, None].to(z.dtype)
        if residual is not None:
            z += residual
        return z if act == NONE else z.clamp_(0.0, act)

    @staticmethod
    def start_back(dy: Tensor, y: Tensor | None, act: float) -> tuple[Tensor, Tensor]:
        """The gradient before the activation, and its sums over parts of the images and positions (parts, channels)."""
        dz = dy if y is None else torch.where((y > 0) & (y < act), dy, 0)
        return dz, dz.sum((2, 3), dtype=torch.promote_types(dy.dtype, torch.float32))

    @staticmethod
    def unfold(
        d_folded: Tensor, sums: Tensor, weight: Tensor, gamma: Tensor, statistics: Statistics
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of the convolution's kernel and of the batch norm's scale and shift."""
        mean, var, eps = statistics
        inverse, d_bias = (var + eps).rsqrt(), sums.sum(0)
        d_scale = (d_folded * weight).sum((1, 2, 3)) - mean * d_bias
        return d_folded * (gamma * inverse)[:, None, None, None], d_scale * inverse, d_bias
