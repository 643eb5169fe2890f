"""act(conv(x) + bias + residual) by torch operations, for CPUs and where Triton does not work.

Buys: ERM steps of Lite0 on a CPU take 0.8 of the time and half the memory (benchmarks/results/cpu_memory.md).

The backward consists of torch operations too, so all derivatives exist. It avoids slow paths of oneDNN: the gradient of
the bias can take as long as that of the weight; the gradient of a depthwise weight takes three times as long for
kernels of more than 3 columns; in bf16 the gradient of the input of a strided depthwise convolution takes ten times as
long.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

COLUMNS = 3  # of a depthwise kernel, for which oneDNN has a fast gradient

aten = torch.ops.aten
MaybeTensor = TypeVar("MaybeTensor", Tensor, Tensor | None)


class Geometry(NamedTuple):
    """The settings of a convolution."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def of(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        out: Tensor = aten.convolution(x, weight, bias, *self[:3], False, (0, 0), self.groups)
        return out

    def back(self, dz: Tensor, x: Tensor, weight: Tensor, *, to_input: bool) -> tuple[Tensor | None, Tensor]:
        """Return the gradients of the input and the weight."""
        depthwise = self.groups == x.shape[1] and set(self.dilation) == {1} and dz.device.type == "cpu"
        wide = depthwise and weight.shape[-1] > COLUMNS
        upcast = depthwise and max(self.stride) > 1 and dz.dtype == torch.bfloat16
        if not wide and not upcast:
            return self._gradients(dz, x, weight, to_input, True)[:2]
        dx = None
        if to_input:
            dtype = torch.float32 if upcast else x.dtype
            dx = self._gradients(dz.to(dtype), x.to(dtype), weight.to(dtype), True, False)[0].to(x.dtype)
        d_weight = self._back_by_columns(dz, x, weight) if wide else self._gradients(dz, x, weight, False, True)[1]
        return dx, d_weight

    def _gradients(self, dz: Tensor, x: Tensor, weight: Tensor, *wanted: bool) -> tuple[Tensor, Tensor, Tensor]:
        gradients: tuple[Tensor, Tensor, Tensor] = aten.convolution_backward(
            dz, x, weight, None, *self[:3], False, (0, 0), self.groups, (*wanted, False)
        )
        return gradients

    def _back_by_columns(self, dz: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient of the weight, from convolutions with some of its columns over the input they see."""
        above, before = self.padding
        parts = []
        for first in range(0, weight.shape[-1], COLUMNS):
            columns = weight[..., first : first + COLUMNS]
            left = before - first
            width = (dz.shape[-1] - 1) * self.stride[1] + columns.shape[-1]
            seen = F.pad(x, (left, width - left - x.shape[-1]))
            parts.append(self._replace(padding=(above, 0))._gradients(dz, seen, columns, False, True)[1])
        return torch.cat(parts, dim=-1)


class Convolution(torch.autograd.Function):
    """act(conv(x) + bias + residual), where `act` is the upper bound of a ReLU, or negative for none."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        residual: Tensor | None,
        geometry: Geometry,
        act: float,
    ) -> Tensor:
        y = geometry.of(x, weight, bias)
        if residual is not None:
            y += residual
        if act >= 0:
            y.clamp_(0.0, act)
        ctx.save_for_backward(x, weight, y if act >= 0 else None)
        ctx.geometry, ctx.act = geometry, act
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        dz = dy if y is None else aten.hardtanh_backward(dy, y.detach(), 0.0, ctx.act)
        dz = dz.contiguous(memory_format=torch.channels_last)
        dx, d_weight = ctx.geometry.back(dz, x, weight, to_input=ctx.needs_input_grad[0])
        return dx, d_weight, dz.sum((0, 2, 3)), dz if ctx.needs_input_grad[3] else None, None, None


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, geometry: Geometry, act: float
) -> Tensor:
    """Return act(conv(x) + bias + residual), in autocast's dtype where autocast is on."""
    dtype = precision(x)
    tensors = laid_out(x, dtype), weight.to(dtype), bias.to(dtype), laid_out(residual, dtype)
    out: Tensor = Convolution.apply(*tensors, geometry, act)  # type: ignore[no-untyped-call]
    return out


def laid_out(x: MaybeTensor, dtype: torch.dtype) -> MaybeTensor:
    """Return a map in this dtype, channels last."""
    return None if x is None else x.to(dtype).contiguous(memory_format=torch.channels_last)


def precision(x: Tensor) -> torch.dtype:
    """Return autocast's dtype where autocast is on, and that of x elsewhere."""
    kind = x.device.type
    on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if on else x.dtype
