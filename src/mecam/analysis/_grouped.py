"""Second derivatives of convolutions in groups, without a loop over the groups.

A convolution, the gradient of its input and that of its kernel are three readings of one trilinear form
sum y * conv(x, w): each is linear in its two arguments, and its derivatives are the other two. So they are written in
terms of each other, and differentiate as often as one likes. Torch's own second derivative takes one group after
another, which for a depthwise convolution is thousands of small operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Grouped(TorchFunctionMode):
    """Inside this context conv2d in several groups is ours; all else, and all values, are as they were."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.conv2d:
            return _conv2d(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class Geometry(NamedTuple):
    """How the kernel goes over the image."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    usual = groups > 1 and not isinstance(padding, str) and input.dim() == 4 and input.is_floating_point()
    # autocast casts for torch's own alone: ours would see several dtypes
    if not usual or torch.is_autocast_enabled(input.device.type):
        return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
    out: Tensor = Convolution.apply(input, weight, Geometry(_two(stride), _two(padding), _two(dilation), groups))  # type: ignore[no-untyped-call]
    return out if bias is None else out + bias[:, None, None]


class Convolution(torch.autograd.Function):
    """conv(x, w)"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geometry = geometry
        out: Tensor = torch.ops.aten.convolution(x, weight, None, *geometry[:3], False, [0, 0], geometry.groups)
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        to_x, to_weight, _ = ctx.needs_input_grad
        dx = ToInput.apply(dy, weight, x, ctx.geometry) if to_x else None  # type: ignore[no-untyped-call]
        d_weight = ToKernel.apply(dy, x, weight, ctx.geometry) if to_weight else None  # type: ignore[no-untyped-call]
        return dx, d_weight, None


class ToInput(torch.autograd.Function):
    """The gradient of its input, of a shape like x."""

    @staticmethod
    def forward(ctx: Any, dy: Tensor, weight: Tensor, x: Tensor, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(dy, weight)
        ctx.geometry = geometry
        return _backward(dy, x, weight, geometry, [True, False, False])[0]

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:
        dy, weight = ctx.saved_tensors
        to_dy, to_weight, *_ = ctx.needs_input_grad
        d_dy = Convolution.apply(dx, weight, ctx.geometry) if to_dy else None  # type: ignore[no-untyped-call]
        d_weight = ToKernel.apply(dy, dx, weight, ctx.geometry) if to_weight else None  # type: ignore[no-untyped-call]
        return d_dy, d_weight, None, None


class ToKernel(torch.autograd.Function):
    """The gradient of its kernel, of a shape like weight."""

    @staticmethod
    def forward(ctx: Any, dy: Tensor, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(dy, x)
        ctx.geometry = geometry
        return _backward(dy, x, weight, geometry, [False, True, False])[1]

    @staticmethod
    def backward(ctx: Any, d_weight: Tensor) -> tuple[Tensor | None, ...]:
        dy, x = ctx.saved_tensors
        to_dy, to_x, *_ = ctx.needs_input_grad
        d_dy = Convolution.apply(x, d_weight, ctx.geometry) if to_dy else None  # type: ignore[no-untyped-call]
        dx = ToInput.apply(dy, d_weight, x, ctx.geometry) if to_x else None  # type: ignore[no-untyped-call]
        return d_dy, dx, None, None


def _backward(dy: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, wanted: list[bool]) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        dy, x, weight, None, *geometry[:3], False, [0, 0], geometry.groups, wanted
    )
    return found


def _two(value: Any) -> list[int]:
    return list(value) if isinstance(value, Sequence) else [value, value]
