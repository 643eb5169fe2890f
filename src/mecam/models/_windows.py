"""Strided depthwise convolutions and max pooling as Triton kernels, padding included. Maps are channels last.

Buys: together with flat bias and activation kernels, ERM steps of Lite0 take 9.4 instead of 11.8 ms on an H200; bias
and activation on a quarter of the map, and a backward without torch's 8-byte indices, where pooling by torch takes
1.0 ms per pass of ResNet-50 (benchmarks/results/gpu.md).

    z[position] = sum over taps of w[tap] x[position * stride + tap - zeros],    one channel at a time

cuDNN is fast without a stride; with one, its backward takes several times as long as the memory traffic requires, and
TensorFlow's asymmetric padding costs two more copies of the map. Weights are channels last too: (taps, channels).

The position of the maximum in its window is kept as one byte, the number of its tap, row by row; torch keeps eight. The
first of equal values counts, as in torch, and NaN is larger than all.
"""

# mypy: ignore-errors
# Triton's language is not Python's, and Triton may be missing where this file is checked.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 1056  # eight on each of 132 multiprocessors
CONVOLUTION = {"block": 64, "columns": 32}  # positions and channels per program
POOLING = {"block": 16, "columns": 64}
SIZES = ["positions", "height", "width", "out_height", "out_width"]  # no specialized kernels for these
PADDED_SIZES = [*SIZES, "above", "left"]


def convolve(x: Tensor, weight: Tensor, window) -> Tensor:
    channels = x.shape[1]
    shape = (len(x), channels, window.out_height, window.out_width)
    z = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    positions = z.numel() // channels
    grid = _grid(positions, channels, **CONVOLUTION)
    _convolve[grid](x, _by_taps(weight), z, channels, *_sizes(positions, x, window), **_fixed(window))
    return z


def back_to_input(dz: Tensor, weight: Tensor, x: Tensor, window) -> Tensor:
    channels, height, width = x.shape[1:]
    dx = torch.empty_like(x)
    positions = len(x) * triton.cdiv(height, window.stride) * triton.cdiv(width, window.stride)
    grid = (*_grid(positions, channels, **CONVOLUTION), window.stride**2)
    _back_to_input[grid](dz, _by_taps(weight), dx, channels, *_sizes(positions, x, window), **_fixed(window))
    return dx


def back_to_weight(dz: Tensor, x: Tensor, window) -> Tensor:
    """Return the gradient of the weight (channels, 1, size, size) in float32."""
    channels, block = x.shape[1], CONVOLUTION["block"]
    positions = dz.numel() // channels
    blocks, across = _grid(positions, channels, **CONVOLUTION)
    down = min(blocks, max(1, PROGRAMS // across))
    length = triton.cdiv(triton.cdiv(positions, down), block) * block  # consecutive positions per program
    sums = torch.empty(down, window.size**2, channels, dtype=torch.float32, device=dz.device)
    sizes = length, *_sizes(positions, x, window)
    _back_to_weight[(down, across, window.size)](dz, x, sums, channels, *sizes, **_fixed(window))
    return sums.sum(0).t().reshape(channels, 1, window.size, window.size)


def pool(z: Tensor, pooling) -> tuple[Tensor, Tensor | None]:
    """Return the maximum of each window and, for a backward pass, its tap."""
    images, channels, height, width = z.shape
    size, stride, padding, keeps = pooling
    down, across = ((length + 2 * padding - size) // stride + 1 for length in (height, width))
    shape, last = (images, channels, down, across), torch.channels_last
    largest = torch.empty(shape, dtype=z.dtype, device=z.device, memory_format=last)
    which = torch.empty(shape, dtype=torch.uint8, device=z.device, memory_format=last) if keeps else None
    positions = images * down * across
    sizes = channels, positions, height, width, down, across
    seen = largest if which is None else which
    fixed = {"size": size, "stride": stride, "padding": padding, **POOLING}
    _pool[_grid(positions, channels, **POOLING)](z, largest, seen, *sizes, keeps=keeps, **fixed)
    return largest, which


def unpool(d_largest: Tensor, which: Tensor, shape: torch.Size, pooling) -> Tensor:
    """Return the gradient of a map of this shape."""
    images, channels, height, width = shape
    size, stride, padding, _ = pooling
    dz = torch.empty(shape, dtype=d_largest.dtype, device=d_largest.device, memory_format=torch.channels_last)
    down, across = ((length - 1 + padding) // stride + 1 for length in (height, width))
    positions = images * down * across
    sizes = channels, positions, height, width, *d_largest.shape[2:]
    fixed = {"size": size, "stride": stride, "padding": padding, **POOLING}
    _unpool[_grid(positions, channels, **POOLING)](d_largest, which, dz, *sizes, **fixed)
    return dz


def _grid(positions: int, channels: int, block: int, columns: int) -> tuple[int, int]:
    return triton.cdiv(positions, block), triton.cdiv(channels, columns)


def _by_taps(weight: Tensor) -> Tensor:
    return weight.flatten(1).t().float().contiguous()


def _sizes(positions: int, x: Tensor, window) -> tuple[int, ...]:
    return positions, *x.shape[2:], window.out_height, window.out_width, window.above, window.left


def _fixed(window) -> dict[str, int]:
    return {"size": window.size, "stride": window.stride, **CONVOLUTION}


@triton.jit(do_not_specialize=PADDED_SIZES)
def _convolve(
    x,
    weight,
    z,
    channels,
    positions,
    height,
    width,
    out_height,
    out_width,
    above,
    left,
    size: tl.constexpr,
    stride: tl.constexpr,
    block: tl.constexpr,
    columns: tl.constexpr,
):
    place = tl.program_id(0) * block + tl.arange(0, block)
    column = (tl.program_id(1) * columns + tl.arange(0, columns))[None, :]
    known = column < channels
    row = (place // out_width) % out_height * stride - above
    col = place % out_width * stride - left
    first = (place // (out_width * out_height) * height + row) * width + col
    start = x + first.to(tl.int64)[:, None] * channels + column
    total = tl.zeros((block, columns), dtype=tl.float32)
    for i in tl.static_range(size):
        for j in tl.static_range(size):
            inside = (row + i >= 0) & (row + i < height) & (col + j >= 0) & (col + j < width) & (place < positions)
            there = start + (i * width + j) * channels
            value = tl.load(there, mask=inside[:, None] & known, other=0.0).to(tl.float32)
            total += value * tl.load(weight + (i * size + j) * channels + column, mask=known, other=0.0)
    here = place.to(tl.int64)[:, None] * channels + column
    tl.store(z + here, total.to(z.dtype.element_ty), mask=(place < positions)[:, None] & known)


@triton.jit(do_not_specialize=PADDED_SIZES)
def _back_to_input(
    dz,
    weight,
    dx,
    channels,
    positions,
    height,
    width,
    out_height,
    out_width,
    above,
    left,
    size: tl.constexpr,
    stride: tl.constexpr,
    block: tl.constexpr,
    columns: tl.constexpr,
):
    # positions that are alike modulo the stride see the same taps: every stride-th, from (first_i, first_j) on
    like_row, like_col = tl.program_id(2) // stride, tl.program_id(2) % stride
    first_i, first_j = (like_row + above) % stride, (like_col + left) % stride
    place = tl.program_id(0) * block + tl.arange(0, block)
    column = (tl.program_id(1) * columns + tl.arange(0, columns))[None, :]
    known = column < channels
    down, across = (height + stride - 1) // stride, (width + stride - 1) // stride
    row = (place // across) % down * stride + like_row
    col = place % across * stride + like_col
    image = place // (across * down)
    here = (place < positions) & (row < height) & (col < width)
    out_row, out_col = (row + above - first_i) // stride, (col + left - first_j) // stride
    start = dz + ((image * out_height + out_row) * out_width + out_col).to(tl.int64)[:, None] * channels + column
    total = tl.zeros((block, columns), dtype=tl.float32)
    for a in tl.static_range((size + stride - 1) // stride):
        for b in tl.static_range((size + stride - 1) // stride):
            i, j = first_i + a * stride, first_j + b * stride
            last_row, last_col = tl.where(i < size, out_height, 0), tl.where(j < size, out_width, 0)  # past the taps: 0
            inside = (out_row >= a) & (out_row - a < last_row) & (out_col >= b) & (out_col - b < last_col) & here
            there = start - (a * out_width + b) * channels
            value = tl.load(there, mask=inside[:, None] & known, other=0.0).to(tl.float32)
            tap = tl.minimum(i, size - 1) * size + tl.minimum(j, size - 1)
            total += value * tl.load(weight + tap * channels + column, mask=known, other=0.0)
    there = ((image * height + row) * width + col).to(tl.int64)[:, None] * channels + column
    tl.store(dx + there, total.to(dx.dtype.element_ty), mask=here[:, None] & known)


@triton.jit(do_not_specialize=["length", *PADDED_SIZES])
def _back_to_weight(
    dz,
    x,
    sums,
    channels,
    length,
    positions,
    height,
    width,
    out_height,
    out_width,
    above,
    left,
    size: tl.constexpr,
    stride: tl.constexpr,
    block: tl.constexpr,
    columns: tl.constexpr,
):
    # a program has one row of taps, so that a value of dz that is read serves all of the row; of size 5 at most
    i = tl.program_id(2)
    column = (tl.program_id(1) * columns + tl.arange(0, columns))[None, :]
    known = column < channels
    total_0 = tl.zeros((block, columns), dtype=tl.float32)
    total_1, total_2, total_3, total_4 = total_0, total_0, total_0, total_0
    begin = tl.program_id(0) * length
    for first in range(begin, tl.minimum(begin + length, positions), block):
        place = first + tl.arange(0, block)
        here = dz + place.to(tl.int64)[:, None] * channels + column
        value = tl.load(here, mask=(place < positions)[:, None] & known, other=0.0).to(tl.float32)
        row = (place // out_width) % out_height * stride - above + i
        col = place % out_width * stride - left
        source = (place // (out_width * out_height) * height + row) * width + col
        start = x + source.to(tl.int64)[:, None] * channels + column
        there = (place < positions) & (row >= 0) & (row < height)
        for j in tl.static_range(size):
            inside = there & (col + j >= 0) & (col + j < width)
            seen = tl.load(start + j * channels, mask=inside[:, None] & known, other=0.0).to(tl.float32) * value
            if j == 0:
                total_0 += seen
            elif j == 1:
                total_1 += seen
            elif j == 2:
                total_2 += seen
            elif j == 3:
                total_3 += seen
            else:
                total_4 += seen
    out = sums + (tl.program_id(0) * size * size + i * size) * channels + column
    for j in tl.static_range(size):
        total = total_0 if j == 0 else total_1 if j == 1 else total_2 if j == 2 else total_3 if j == 3 else total_4
        tl.store(out + j * channels, tl.sum(total, axis=0, keep_dims=True), mask=known)


@triton.jit(do_not_specialize=SIZES)
def _pool(
    z,
    largest,
    which,
    channels,
    positions,
    height,
    width,
    out_height,
    out_width,
    keeps: tl.constexpr,
    size: tl.constexpr,
    stride: tl.constexpr,
    padding: tl.constexpr,
    block: tl.constexpr,
    columns: tl.constexpr,
):
    place = tl.program_id(0) * block + tl.arange(0, block)
    column = (tl.program_id(1) * columns + tl.arange(0, columns))[None, :]
    known = column < channels
    row = (place // out_width) % out_height * stride - padding
    col = place % out_width * stride - padding
    first = (place // (out_width * out_height) * height + row) * width + col
    start = z + first.to(tl.int64)[:, None] * channels + column
    values, best = (), tl.full((block, columns), float("-inf"), dtype=tl.float32)
    for i in tl.static_range(size):
        for j in tl.static_range(size):
            inside = (row + i >= 0) & (row + i < height) & (col + j >= 0) & (col + j < width) & (place < positions)
            there = start + (i * width + j) * channels
            value = tl.load(there, mask=inside[:, None] & known, other=float("-inf")).to(tl.float32)
            best = tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)
            values += (value,)
    here = place.to(tl.int64)[:, None] * channels + column
    mask = (place < positions)[:, None] & known
    tl.store(largest + here, best.to(largest.dtype.element_ty), mask=mask)
    if keeps:
        number = tl.zeros((block, columns), dtype=tl.int32)
        for tap in tl.static_range(size * size - 1, -1, -1):
            number = tl.where(values[tap] == best, tap, number)
        first_inside = (tl.maximum(-row, 0) * size + tl.maximum(-col, 0))[:, None]
        number = tl.where(best > float("-inf"), number, first_inside)  # also for NaN, which equals nothing
        tl.store(which + here, number.to(tl.uint8), mask=mask)


@triton.jit(do_not_specialize=SIZES)
def _unpool(
    d_largest,
    which,
    dz,
    channels,
    positions,
    height,
    width,
    out_height,
    out_width,
    size: tl.constexpr,
    stride: tl.constexpr,
    padding: tl.constexpr,
    block: tl.constexpr,
    columns: tl.constexpr,
):
    # a program has squares of stride x stride positions; the last window that reaches a square starts where it does
    place = tl.program_id(0) * block + tl.arange(0, block)
    column = (tl.program_id(1) * columns + tl.arange(0, columns))[None, :]
    known = column < channels
    down, across = (height - 1 + padding) // stride + 1, (width - 1 + padding) // stride + 1
    out_row, out_col = (place // across) % down, place % across
    image = place // (across * down)
    last = ((image * out_height + out_row) * out_width + out_col).to(tl.int64)[:, None] * channels + column
    totals = ()  # computed before the first is stored, so that shared values are read once
    for i in tl.static_range(stride):
        for j in tl.static_range(stride):
            total = tl.zeros((block, columns), dtype=tl.float32)
            for a in tl.static_range((size - i + stride - 1) // stride):
                for b in tl.static_range((size - j + stride - 1) // stride):
                    row_inside = (out_row >= a) & (out_row - a < out_height)
                    inside = row_inside & (out_col >= b) & (out_col - b < out_width) & (place < positions)
                    there = last - (a * out_width + b) * channels
                    value = tl.load(d_largest + there, mask=inside[:, None] & known, other=0.0).to(tl.float32)
                    number = tl.load(which + there, mask=inside[:, None] & known, other=0)
                    total += tl.where(number == (i + a * stride) * size + j + b * stride, value, 0.0)
            totals += (total,)
    for i in tl.static_range(stride):
        for j in tl.static_range(stride):
            row, col = out_row * stride + i - padding, out_col * stride + j - padding
            here = (row >= 0) & (row < height) & (col >= 0) & (col < width) & (place < positions)
            there = ((image * height + row) * width + col).to(tl.int64)[:, None] * channels + column
            tl.store(dz + there, totals[i * stride + j].to(dz.dtype.element_ty), mask=here[:, None] & known)
