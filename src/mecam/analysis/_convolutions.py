"""Second derivatives of convolutions by the operations of the first.

The output y, the input x and the kernel w of a convolution meet in one trilinear form, Σ y · conv(x, w). The
convolution, the gradient of its input and that of its kernel are the derivatives of this form by y, x and w, and the
gradients of each are the other two: one function covers them all. Torch's own second derivative convolves with kernels
of the size of the map, and loops over the groups, which for a depthwise convolution is thousands of small operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

Y, X, W = range(3)


class Convolutions(TorchFunctionMode):
    """Compute conv2d by `Form`; the values stay the same."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return (_conv2d if func is torch.conv2d else func)(*args, **(kwargs or {}))


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    usual = not isinstance(padding, str) and input.dim() == 4 and input.is_floating_point()
    # autocast casts the arguments of torch's own operations only
    if not usual or torch.is_autocast_enabled(input.device.type):
        return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
    out: Tensor = Form.apply(
        Y, None, input, weight, (_two(stride), _two(padding), _two(dilation), False, [0, 0], groups)
    )  # type: ignore[no-untyped-call]
    return out if bias is None else out + bias[:, None, None]


class Form(torch.autograd.Function):
    """The derivative of Σ y · conv(x, w) by the part `by`, which is given for its shape only.

    `settings` are those of aten.convolution: stride, padding, dilation, not transposed, no output padding, groups.
    """

    @staticmethod
    def forward(ctx: Any, by: int, y: Tensor | None, x: Tensor, w: Tensor, settings: tuple[Any, ...]) -> Tensor:
        ctx.save_for_backward(*(None if part == by else tensor for part, tensor in enumerate((y, x, w))))
        ctx.by, ctx.settings = by, settings
        if by == Y:
            out: Tensor = torch.ops.aten.convolution(x, w, None, *settings)
            return out
        gradients = torch.ops.aten.convolution_backward(y, x, w, None, *settings, [by == X, by == W, False])
        gradient: Tensor = gradients[by - 1]
        return gradient

    @staticmethod
    def backward(ctx: Any, derivative: Tensor) -> tuple[Tensor | None, ...]:
        parts = list(ctx.saved_tensors)
        parts[ctx.by] = derivative
        wanted = [part != ctx.by and ctx.needs_input_grad[1 + part] for part in (Y, X, W)]
        gradients = [Form.apply(part, *parts, ctx.settings) if wanted[part] else None for part in (Y, X, W)]  # type: ignore[no-untyped-call]
        return None, *gradients, None


def _two(value: Any) -> list[int]:
    return list(value) if isinstance(value, Sequence) else [value, value]
