"""Compute and change the style of channels-last maps in two Triton kernels, each of which reads the map once.

Buys: MixStyle in MeCAM's meta pass takes 0.7 instead of 3.7 ms on an H200 (benchmarks/results/gpu.md).

In a channels-last map (B, C, L) each sample is a matrix with a row per position and a column per channel.
"""

# mypy: ignore-errors
# Triton's language is not Python's, and Triton may be missing where this file is checked.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 64


def style(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the unbiased variance and the mean of each channel over positions, in float32: both (B, C, 1)."""
    count, channels, positions = x.shape
    var, mean = (torch.empty(count, channels, 1, dtype=torch.float32, device=x.device) for _ in range(2))
    columns = min(32, triton.next_power_of_2(channels))
    rows = min(2 * ROWS, triton.next_power_of_2(positions))
    grid = (count, triton.cdiv(channels, columns))
    _style[grid](x, var, mean, channels, positions, block_rows=rows, block_columns=columns)
    return var, mean


def affine(x: Tensor, a: Tensor, b: Tensor | None) -> Tensor:
    """Return a x + b for contiguous float32 a and b (B, C, 1); None stands for 0."""
    count, channels, positions = x.shape
    out = torch.empty_like(x)
    columns = min(128, triton.next_power_of_2(channels))
    grid = (count, triton.cdiv(positions, ROWS), triton.cdiv(channels, columns))
    shift = a if b is None else b
    _affine[grid](x, a, shift, out, channels, positions, add=b is not None, block_rows=ROWS, block_columns=columns)
    return out


@triton.jit
def _style(x, var, mean, channels, positions, block_rows: tl.constexpr, block_columns: tl.constexpr):
    sample = tl.program_id(0).to(tl.int64)
    column = (tl.program_id(1) * block_columns + tl.arange(0, block_columns))[None, :]
    start = x + sample * positions * channels
    middle = tl.zeros((1, block_columns), dtype=tl.float32)
    squares = tl.zeros((1, block_columns), dtype=tl.float32)
    for first in range(0, positions, block_rows):  # the rows so far, and a block of them (Chan et al. 1979)
        row = (first + tl.arange(0, block_rows))[:, None]
        inside = (row < positions) & (column < channels)
        value = tl.load(start + row * channels + column, mask=inside, other=0.0).to(tl.float32)
        rows = tl.minimum(block_rows, positions - first)
        here = tl.sum(value, axis=0, keep_dims=True) / rows
        away = tl.where(inside, value - here, 0.0)
        step, share = here - middle, rows / (first + rows)
        squares += tl.sum(away * away, axis=0, keep_dims=True) + step * step * (first * share)
        middle += step * share
    place = sample * channels + column
    tl.store(mean + place, middle, mask=column < channels)
    tl.store(var + place, squares / (positions - 1), mask=column < channels)


@triton.jit
def _affine(
    x, a, b, out, channels, positions, add: tl.constexpr, block_rows: tl.constexpr, block_columns: tl.constexpr
):
    sample = tl.program_id(0).to(tl.int64)
    row = (tl.program_id(1) * block_rows + tl.arange(0, block_rows))[:, None]
    column = (tl.program_id(2) * block_columns + tl.arange(0, block_columns))[None, :]
    inside = (row < positions) & (column < channels)
    place = sample * positions * channels + row * channels + column
    factor = tl.load(a + sample * channels + column, mask=column < channels)
    value = tl.load(x + place, mask=inside).to(tl.float32) * factor
    if add:
        value += tl.load(b + sample * channels + column, mask=column < channels)
    tl.store(out + place, value.to(out.dtype.element_ty), mask=inside)
