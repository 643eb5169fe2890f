"""Max pooling, forward and backward, as Triton kernels, padding included. Maps are channels last.

Buys: bias and activation on a quarter of the map, and a backward without torch's 8-byte indices; pooling by torch takes
1.0 ms per pass of ResNet-50 on an H200 (benchmarks/results/gpu.md).

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

BLOCK, COLUMNS = 16, 64  # positions and channels per program
SIZES = ["positions", "height", "width", "out_height", "out_width"]  # no specialized kernels for these


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
    _pool[_grid(positions, channels)](z, largest, seen, *sizes, keeps=keeps, **_fixed(pooling))
    return largest, which


def unpool(d_largest: Tensor, which: Tensor, shape: torch.Size, pooling) -> Tensor:
    """Return the gradient of a map of this shape."""
    images, channels, height, width = shape
    dz = torch.empty(shape, dtype=d_largest.dtype, device=d_largest.device, memory_format=torch.channels_last)
    down, across = ((length - 1 + pooling.padding) // pooling.stride + 1 for length in (height, width))
    positions = images * down * across
    sizes = channels, positions, height, width, *d_largest.shape[2:]
    _unpool[_grid(positions, channels)](d_largest, which, dz, *sizes, **_fixed(pooling))
    return dz


def _grid(positions: int, channels: int) -> tuple[int, int]:
    return triton.cdiv(positions, BLOCK), triton.cdiv(channels, COLUMNS)


def _fixed(pooling) -> dict[str, int]:
    taps = {"size": pooling.size, "stride": pooling.stride, "padding": pooling.padding}
    return {**taps, "block": BLOCK, "columns": COLUMNS}


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
