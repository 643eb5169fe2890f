"""Fold a frozen batch norm into the convolution before it, fused with residual, activation and pooling.

Buys: ERM steps of ResNet-50 take 17 instead of 33 ms on an H200, and half the memory (benchmarks/results/gpu.md).

    y = act(conv(x, s w) + (beta - s mean) + residual),    s = gamma / sqrt(var + eps)

Frozen statistics are constants, so this is the same function of w, gamma and beta. It saves memory traffic: the output
of the convolution is read once more instead of three or four times and is not kept for the backward pass. With Triton
the steps around the convolution are single kernels, and the function is differentiable once. Without it they are torch
operations, differentiable any number of times (`_convolution.py`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mecam._triton import kernels
from mecam.models._convolution import Geometry, aten, convolve, laid_out, precision

NONE, RELU, RELU6 = -1.0, math.inf, 6.0  # upper bound of the activation; NONE: no activation


def conv_bn(
    x: Tensor, conv: nn.Conv2d, bn: nn.BatchNorm2d, act: float = RELU, residual: Tensor | None = None
) -> Tensor:
    """Return act(bn(conv(x)) + residual)."""
    if folds(bn):
        return _folded(x, conv, bn, act, residual, None)
    z: Tensor = bn(conv(x))
    if residual is not None:
        z += residual
    return z if act == NONE else z.relu_() if act == RELU else F.hardtanh_(z, 0.0, act)


def conv_bn_pool(x: Tensor, conv: nn.Conv2d, bn: nn.BatchNorm2d, pool: nn.Module, act: float = RELU) -> Tensor:
    """Return pool(act(bn(conv(x))))."""
    if folds(bn) and (pooling := _pooling(pool)) and _kernels_for(x, "_windows"):
        return _folded(x, conv, bn, act, None, pooling)
    out: Tensor = pool(conv_bn(x, conv, bn, act))
    return out


class SameConv2d(nn.Conv2d):
    """TensorFlow's "same" padding: ceil(size / stride) output pixels, with an odd zero on the right and below.

    The padding depends on the image size. It equals the static padding of efficientnet_lite_pytorch at its fixed
    size, and TensorFlow's at every size.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.pad(x))

    def pad(self, x: Tensor) -> Tensor:
        return F.pad(x, self.zeros(x))

    def zeros(self, x: Tensor) -> tuple[int, int, int, int]:
        """Return the number of zeros on the left, on the right, above and below."""
        return *self._zeros(x, -1), *self._zeros(x, -2)

    def _zeros(self, x: Tensor, dim: int) -> tuple[int, int]:
        size, kernel, stride = x.shape[dim], self.kernel_size[dim], self.stride[dim]
        total = max((size - 1) // stride * stride + kernel - size, 0)
        return total // 2, total - total // 2


class Statistics(NamedTuple):
    """The statistics of a frozen batch norm."""

    mean: Tensor
    var: Tensor
    eps: float


class Window(NamedTuple):
    """A strided depthwise convolution by the kernels of `_windows`."""

    size: int
    stride: int
    above: int
    left: int
    out_height: int
    out_width: int

    def of(self, x: Tensor, weight: Tensor) -> Tensor:
        return _kernels("_windows").convolve(x, weight, self)  # type: ignore[no-any-return]

    def back(self, dz: Tensor, x: Tensor, weight: Tensor, *, to_input: bool) -> tuple[Tensor | None, Tensor]:
        dx = _kernels("_windows").back_to_input(dz, weight, x, self) if to_input else None
        return dx, _kernels("_windows").back_to_weight(dz, x, self)


class Squares(NamedTuple):
    """A strided convolution of few channels, such as a stem, as one without a stride on squares of pixels.

    The pixels of a square of `stride` x `stride` become channels, of which tensor cores take multiples of eight.
    """

    geometry: Geometry  # the convolution itself

    def of(self, x: Tensor, weight: Tensor) -> Tensor:
        return Geometry((1, 1), (0, 0), (1, 1), 1).of(self._pixels(x, weight), self._taps(weight))

    def back(self, dz: Tensor, x: Tensor, weight: Tensor, *, to_input: bool) -> tuple[Tensor | None, Tensor]:
        dx = self.geometry.back(dz, x, weight, to_input=True)[0] if to_input else None
        taps, (rows, columns) = self._taps(weight), weight.shape[2:]
        d_taps = Geometry((1, 1), (0, 0), (1, 1), 1).back(dz, self._pixels(x, weight), taps, to_input=False)[1]
        stride = self.geometry.stride[0]
        d_weight = F.pixel_shuffle(d_taps[:, : x.shape[1] * stride**2], stride)[:, :, :rows, :columns]
        return dx, d_weight.contiguous(memory_format=torch.channels_last)

    def _pixels(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the squares that the convolution sees, from its padding on."""
        (stride, _), (above, left) = self.geometry.stride, self.geometry.padding
        squares = [
            (side + 2 * zeros - size) // stride + math.ceil(size / stride)
            for side, zeros, size in zip(x.shape[2:], (above, left), weight.shape[2:], strict=True)
        ]
        height, width = (stride * count for count in squares)
        seen = F.pad(x, (left, width - left - x.shape[3], above, height - above - x.shape[2]))
        out = x.new_zeros(len(x), *squares, _aligned(x.shape[1] * stride**2))
        parts = seen.view(len(x), x.shape[1], squares[0], stride, squares[1], stride).permute(0, 2, 4, 1, 3, 5)
        out[..., : x.shape[1] * stride**2].view(parts.shape).copy_(parts)
        return out.permute(0, 3, 1, 2)

    def _taps(self, weight: Tensor) -> Tensor:
        stride, (rows, columns) = self.geometry.stride[0], weight.shape[2:]
        taps = F.pixel_unshuffle(F.pad(weight, (0, -columns % stride, 0, -rows % stride)), stride)
        missing = _aligned(taps.shape[1]) - taps.shape[1]
        return F.pad(taps, (0, 0, 0, 0, 0, missing)).contiguous(memory_format=torch.channels_last)


class Pooling(NamedTuple):
    """Max pooling over square windows by the kernels of `_windows`."""

    size: int
    stride: int
    padding: int
    keeps: bool  # keep the positions of the maxima, for a backward pass

    def of(self, z: Tensor) -> tuple[Tensor, Tensor | None]:
        return _kernels("_windows").pool(z, self)  # type: ignore[no-any-return]

    def back(self, d_largest: Tensor, which: Tensor, shape: torch.Size) -> Tensor:
        return _kernels("_windows").unpool(d_largest, which, shape, self)  # type: ignore[no-any-return]


class FoldedConvolution(torch.autograd.Function):
    """The function at the top of this file by Triton, in autocast's dtype where autocast is on.

    Bias, activation and rounding are monotone, so max pooling comes first and they are applied to the smaller map.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        gamma: Tensor,
        beta: Tensor,
        residual: Tensor | None,
        statistics: Statistics,
        convolution: Geometry | Window | Squares,
        act: float,
        pooling: Pooling | None,
    ) -> Tensor:
        dtype, pieces = precision(x), _kernels("_kernels")
        x = laid_out(x, dtype)
        folded, bias = pieces.fold(weight, gamma, beta, statistics, dtype)
        z = convolution.of(x, folded).contiguous(memory_format=torch.channels_last)
        ctx.shape, which = z.shape, None
        if pooling is not None:
            z, which = pooling.of(z)
        y: Tensor = pieces.finish(z, bias, laid_out(residual, dtype), act)
        ctx.save_for_backward(x, folded, None if act == NONE else y, weight, gamma, which)
        ctx.statistics, ctx.convolution, ctx.act, ctx.pooling = statistics, convolution, act, pooling
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # torch's once_differentiable lets torch.autograd.grad leave out these terms
            raise RuntimeError(
                "a batch norm folded by Triton kernels has first derivatives only, and create_graph=True asks for "
                "second ones; use a network that fold_frozen was not called for"
            )
        x, folded, y, weight, gamma, which = ctx.saved_tensors
        pieces = _kernels("_kernels")
        dz, sums = pieces.start_back(dy.contiguous(memory_format=torch.channels_last), y, ctx.act)
        d_residual = dz if ctx.needs_input_grad[4] else None
        if ctx.pooling is not None:
            dz = ctx.pooling.back(dz, which, ctx.shape)
        dx, d_folded = ctx.convolution.back(dz, x, folded, to_input=ctx.needs_input_grad[0])
        d_weight, d_gamma, d_beta = pieces.unfold(d_folded, sums, weight, gamma, ctx.statistics)
        return dx, d_weight, d_gamma, d_beta, d_residual, None, None, None, None


def folds(bn: nn.BatchNorm2d) -> bool:
    """Return whether `fold_frozen` was called for the network and the batch norm is in eval mode.

    On a CPU, passes without gradients are not folded: evaluations in training then equal those of a loaded model.
    """
    if not getattr(bn, "folds", False) or bn.training or not bn.affine:
        return False
    return bn.weight.is_cuda or torch.is_grad_enabled()


def _folded(
    x: Tensor, conv: nn.Conv2d, bn: nn.BatchNorm2d, act: float, residual: Tensor | None, pooling: Pooling | None
) -> Tensor:
    statistics = Statistics(bn.running_mean, bn.running_var, bn.eps)  # type: ignore[arg-type]
    convolution: Geometry | Window | Squares
    if _is_strided_depthwise(conv) and _kernels_for(x, "_windows"):
        convolution = _window(x, conv)
    else:
        if isinstance(conv, SameConv2d):
            x = conv.pad(x)
        convolution = Geometry(conv.stride, conv.padding, conv.dilation, conv.groups)  # type: ignore[arg-type]
        if _kernels_for(x, "_kernels"):
            convolution = Squares(convolution) if is_stem(conv) else convolution
        else:
            scale = bn.weight * (statistics.var + bn.eps).rsqrt()
            bias = bn.bias - statistics.mean * scale
            return convolve(x, conv.weight * scale[:, None, None, None], bias, residual, convolution, act)
    tensors = x, conv.weight, bn.weight, bn.bias, residual
    half = precision(x) in (torch.bfloat16, torch.float16)
    evaluates = not torch.is_grad_enabled() and not conv.training and torch.version.hip is None  # cuDNN is NVIDIA's
    if evaluates and half and isinstance(convolution, Geometry) and act == RELU and pooling is None:
        return _by_cudnn(*tensors, statistics, convolution)
    out: Tensor = FoldedConvolution.apply(*tensors, statistics, convolution, act, pooling)  # type: ignore[no-untyped-call]
    return out


def _by_cudnn(
    x: Tensor,
    weight: Tensor,
    gamma: Tensor,
    beta: Tensor,
    residual: Tensor | None,
    statistics: Statistics,
    geometry: Geometry,
) -> Tensor:
    """Return relu(bn(conv(x)) + residual) by a kernel of cuDNN, which takes the bias in half precision only.

    So it is for evaluations: an error of rounding that is the same at every position does not enter a gradient.
    """
    dtype = precision(x)
    folded, bias = _kernels("_kernels").fold(weight, gamma, beta, statistics, dtype)
    inputs, other = (laid_out(x, dtype), folded), laid_out(residual, dtype)
    out: Tensor
    if other is None:
        out = aten.cudnn_convolution_relu(*inputs, bias.to(dtype), *geometry)
    else:
        out = aten.cudnn_convolution_add_relu(*inputs, other, 1.0, bias.to(dtype), *geometry)
    return out


def is_stem(conv: nn.Conv2d) -> bool:
    """Return whether the convolution is one that `Squares` was measured to speed up: a ResNet's first."""
    few = conv.groups == 1 and conv.in_channels < 8 and set(conv.dilation) == {1}
    return few and conv.kernel_size == (7, 7) and conv.stride == (2, 2)


def _aligned(channels: int) -> int:
    return math.ceil(channels / 8) * 8


def _is_strided_depthwise(conv: nn.Conv2d) -> bool:
    """Return whether the kernels of `_windows` support it: square, of size 5 at most."""
    (size, *sizes), (stride, *strides) = set(conv.kernel_size), set(conv.stride)
    depthwise = conv.groups == conv.in_channels == conv.out_channels
    return depthwise and stride > 1 and size <= 5 and not sizes and not strides and set(conv.dilation) == {1}


def _window(x: Tensor, conv: nn.Conv2d) -> Window:
    if isinstance(conv, SameConv2d):
        left, right, above, below = conv.zeros(x)
    else:
        above, left = below, right = cast("tuple[int, int]", conv.padding)
    size, stride = conv.kernel_size[0], conv.stride[0]
    height, width = x.shape[-2] + above + below, x.shape[-1] + left + right
    return Window(size, stride, above, left, (height - size) // stride + 1, (width - size) // stride + 1)


def _pooling(pool: nn.Module) -> Pooling | None:
    """Return the max pooling, or None where the kernels do not support it: square, of size 5 at most, no options."""
    # a subclass may differ
    if type(pool) is not nn.MaxPool2d or pool.dilation != 1 or pool.ceil_mode or pool.return_indices:
        return None
    size, stride, padding = pool.kernel_size, pool.stride, pool.padding
    if not isinstance(size, int) or not isinstance(stride, int) or not isinstance(padding, int) or size > 5:
        return None
    if 2 * padding > size:  # torch reports it
        return None
    return Pooling(size, stride, padding, torch.is_grad_enabled())


def _kernels_for(x: Tensor, module: str) -> Any:
    """Return the Triton kernels if x is on a GPU and Triton works; they compute in float32."""
    return _kernels(module) if x.is_cuda and x.dtype != torch.float64 else None


def _kernels(module: str) -> Any:
    return kernels(f"mecam.models.{module}")
