"""The pieces of a folded convolution as Triton kernels, which read and write each value once.

Buys: bias, residual and activation are one pass over the map, as are their gradient and the bias sums (see folding.py).

Maps are channels last and are read as matrices with a row per position and a column per channel. Convolution weights
have a contiguous row per output channel in either memory format.
"""

# mypy: ignore-errors
# Triton's language is not Python's, and Triton may be missing where this file is checked.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 1056  # eight on each of 132 multiprocessors
ROWS, COLUMNS, LENGTH = 64, 32, 1024  # fixed, since each width compiles another kernel


def fold(weight, gamma, beta, statistics, dtype) -> tuple[Tensor, Tensor]:
    mean, var, eps = statistics
    folded, bias = torch.empty_like(weight, dtype=dtype), torch.empty_like(beta)
    _fold[(len(weight),)](weight, gamma, beta, mean, var, eps, folded, bias, weight[0].numel(), block=LENGTH)
    return folded, bias


def finish(z: Tensor, bias: Tensor, residual: Tensor | None, act: float) -> Tensor:
    other = z if residual is None else residual
    grid = (triton.cdiv(z.numel(), LENGTH),)
    _finish[grid](z, bias, other, z.numel(), z.shape[1], add=residual is not None, act=act, block=LENGTH)
    return z


def start_back(dy: Tensor, y: Tensor | None, act: float) -> tuple[Tensor, Tensor]:
    rows, channels = dy.numel() // dy.shape[1], dy.shape[1]
    across = triton.cdiv(channels, COLUMNS)
    down = min(triton.cdiv(rows, ROWS), max(1, PROGRAMS // across))
    dz = dy if y is None else torch.empty_like(dy)
    sums = torch.empty(down, channels, dtype=torch.float32, device=dy.device)
    seen = dy if y is None else y
    _start_back[(down, across)](dy, seen, dz, sums, rows, channels, act=act, block_rows=ROWS, block_columns=COLUMNS)
    return dz, sums


def unfold(d_folded, sums, weight, gamma, statistics) -> tuple[Tensor, Tensor, Tensor]:
    mean, var, eps = statistics
    if weight[0, 0].numel() > 1 and d_folded.stride() != weight.stride():
        d_folded = torch.empty_like(weight, dtype=d_folded.dtype).copy_(d_folded)
    d_weight, d_gamma, d_beta = torch.empty_like(weight), torch.empty_like(gamma), torch.empty_like(gamma)
    inputs, outputs = (d_folded, sums, weight, gamma, mean, var, eps), (d_weight, d_gamma, d_beta)
    _unfold[(len(weight),)](*inputs, *outputs, len(sums), len(weight), weight[0].numel(), block=LENGTH)
    return d_weight, d_gamma, d_beta


@triton.jit
def _fold(weight, gamma, beta, mean, var, eps, folded, bias, length, block: tl.constexpr):
    row = tl.program_id(0)
    scale = tl.load(gamma + row) / tl.sqrt(tl.load(var + row) + eps)
    tl.store(bias + row, tl.load(beta + row) - tl.load(mean + row) * scale)
    for start in range(0, length, block):
        place = start + tl.arange(0, block)
        inside = place < length
        value = tl.load(weight + row * length + place, mask=inside) * scale
        tl.store(folded + row * length + place, value.to(folded.dtype.element_ty), mask=inside)


@triton.jit
def _finish(z, bias, residual, count, channels, add: tl.constexpr, act: tl.constexpr, block: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = place < count
    value = tl.load(z + place, mask=inside).to(tl.float32) + tl.load(bias + place % channels)
    if add:
        value += tl.load(residual + place, mask=inside).to(tl.float32)
    if act >= 0:
        value = tl.where(value < 0, 0.0, value)  # NaN stays NaN
        value = tl.where(value > act, act, value)
    tl.store(z + place, value.to(z.dtype.element_ty), mask=inside)


@triton.jit
def _start_back(
    dy, y, dz, sums, rows, channels, act: tl.constexpr, block_rows: tl.constexpr, block_columns: tl.constexpr
):
    column = (tl.program_id(1) * block_columns + tl.arange(0, block_columns))[None, :]
    total = tl.zeros((1, block_columns), dtype=tl.float32)
    for first in range(tl.program_id(0) * block_rows, rows, tl.num_programs(0) * block_rows):
        row = (first + tl.arange(0, block_rows).to(tl.int64))[:, None]
        inside = (row < rows) & (column < channels)
        place = row * channels + column
        value = tl.load(dy + place, mask=inside, other=0.0).to(tl.float32)
        if act >= 0:
            seen = tl.load(y + place, mask=inside, other=0.0).to(tl.float32)
            value = tl.where((seen > 0) & (seen < act), value, 0.0)
            tl.store(dz + place, value.to(dz.dtype.element_ty), mask=inside)
        total += tl.sum(value, axis=0, keep_dims=True)
    tl.store(sums + tl.program_id(0) * channels + column, total, mask=column < channels)


@triton.jit
def _unfold(
    d_folded,
    sums,
    weight,
    gamma,
    mean,
    var,
    eps,
    d_weight,
    d_gamma,
    d_beta,
    parts,
    channels,
    length,
    block: tl.constexpr,
):
    row = tl.program_id(0)
    part = tl.zeros((block,), dtype=tl.float32)
    for start in range(0, parts, block):
        place = start + tl.arange(0, block)
        part += tl.load(sums + place * channels + row, mask=place < parts, other=0.0)
    d_bias = tl.sum(part, axis=0)
    inverse = 1.0 / tl.sqrt(tl.load(var + row) + eps)
    scale = tl.load(gamma + row) * inverse
    total = tl.zeros((block,), dtype=tl.float32)
    for start in range(0, length, block):
        place = start + tl.arange(0, block)
        inside = place < length
        gradient = tl.load(d_folded + row * length + place, mask=inside, other=0.0).to(tl.float32)
        total += gradient * tl.load(weight + row * length + place, mask=inside, other=0.0)
        tl.store(d_weight + row * length + place, gradient * scale, mask=inside)
    tl.store(d_gamma + row, (tl.sum(total, axis=0) - tl.load(mean + row) * d_bias) * inverse)
    tl.store(d_beta + row, d_bias)
