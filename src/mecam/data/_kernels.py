"""Colour jitter, grayscale and normalisation of a batch in two Triton kernels: the images are read twice, written once.

Contrast needs the mean grey of the image at the moment its turn comes, so the first kernel takes each image through
the operations that come before it and adds up the grey, and the second takes it through all of them.
"""

# mypy: ignore-errors
# Triton's language is not Python's, and Triton is not everywhere this file is checked.
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

PIXELS = 1024  # of an image at once


def colour(x: Tensor, order: Tensor, factors: Tensor, gray: Tensor, mean, std, *, out: Tensor) -> None:
    """x (B, 3, H, W) in [0, 1], contiguous, as `Augmentation.apply` colours it; `out` may be laid out in any way."""
    count, _, height, width = x.shape
    parts = triton.cdiv(height * width, PIXELS)
    sums = x.new_empty(count, parts)
    images = x, order, factors
    _grey[(count, parts)](*images, sums, height * width, block=PIXELS)
    rest = (*mean, *std, height * width, width, parts, *out.stride())
    _colour[(count, parts)](*images, gray, sums, out, *rest, block=PIXELS, parts_block=triton.next_power_of_2(parts))


@triton.jit
def _clipped(value):
    return tl.minimum(tl.maximum(value, 0.0), 1.0)


@triton.jit
def _luma(r, g, b):
    return 0.299 * r + 0.587 * g + 0.114 * b


@triton.jit
def _shifted(low, chroma, part):
    return low + chroma * _clipped(part)


@triton.jit
def _operation(r, g, b, kind, factor, mean):
    """One of brightness (0), contrast (1), saturation (2) and hue (3)."""
    grey = _luma(r, g, b)
    reference = tl.where(kind == 2, grey, tl.where(kind == 1, mean, 0.0))
    blended_r = _clipped(factor * r + (1 - factor) * reference)
    blended_g = _clipped(factor * g + (1 - factor) * reference)
    blended_b = _clipped(factor * b + (1 - factor) * reference)
    high = tl.maximum(tl.maximum(r, g), b)
    low = tl.minimum(tl.minimum(r, g), b)
    chroma = high - low
    scale = 1.0 / tl.maximum(chroma, 1e-12)
    hue = tl.where(high == r, (g - b) * scale, tl.where(high == g, (b - r) * scale + 2, (r - g) * scale + 4))
    hue += 6 * factor
    hue -= tl.floor(hue / 6) * 6
    turned_r = _shifted(low, chroma, tl.abs(hue - 3) - 1)
    turned_g = _shifted(low, chroma, 2 - tl.abs(hue - 2))
    turned_b = _shifted(low, chroma, 2 - tl.abs(hue - 4))
    is_hue = kind == 3
    return (
        tl.where(is_hue, turned_r, blended_r),
        tl.where(is_hue, turned_g, blended_g),
        tl.where(is_hue, turned_b, blended_b),
    )


@triton.jit
def _grey(x, order, factors, sums, pixels, block: tl.constexpr):
    image, part = tl.program_id(0), tl.program_id(1)
    place = part * block + tl.arange(0, block)
    inside = place < pixels
    start = x + image.to(tl.int64) * 3 * pixels + place
    r = tl.load(start, mask=inside, other=0.0)
    g = tl.load(start + pixels, mask=inside, other=0.0)
    b = tl.load(start + 2 * pixels, mask=inside, other=0.0)
    before = tl.load(order + image * 4) >= 0  # true, until the turn of contrast
    for slot in tl.static_range(4):
        kind = tl.load(order + image * 4 + slot)
        before = before & (kind != 1)
        factor = tl.load(factors + image * 4 + kind)
        new_r, new_g, new_b = _operation(r, g, b, kind, factor, 0.0)
        r = tl.where(before, new_r, r)
        g = tl.where(before, new_g, g)
        b = tl.where(before, new_b, b)
    tl.store(sums + image * tl.num_programs(1) + part, tl.sum(tl.where(inside, _luma(r, g, b), 0.0), axis=0))


@triton.jit
def _colour(
    x,
    order,
    factors,
    gray,
    sums,
    out,
    mean_r,
    mean_g,
    mean_b,
    std_r,
    std_g,
    std_b,
    pixels,
    width,
    parts,
    by_image,
    by_channel,
    by_row,
    by_column,
    block: tl.constexpr,
    parts_block: tl.constexpr,
):
    image, part = tl.program_id(0), tl.program_id(1)
    each = tl.arange(0, parts_block)
    mean = tl.sum(tl.load(sums + image * parts + each, mask=each < parts, other=0.0), axis=0) / pixels
    place = part * block + tl.arange(0, block)
    inside = place < pixels
    start = x + image.to(tl.int64) * 3 * pixels + place
    r = tl.load(start, mask=inside, other=0.0)
    g = tl.load(start + pixels, mask=inside, other=0.0)
    b = tl.load(start + 2 * pixels, mask=inside, other=0.0)
    for slot in tl.static_range(4):
        kind = tl.load(order + image * 4 + slot)
        r, g, b = _operation(r, g, b, kind, tl.load(factors + image * 4 + kind), mean)
    is_gray = tl.load(gray + image)
    grey = _luma(r, g, b)
    there = out + image.to(tl.int64) * by_image + (place // width) * by_row + (place % width) * by_column
    tl.store(there, (tl.where(is_gray, grey, r) - mean_r) / std_r, mask=inside)
    tl.store(there + by_channel, (tl.where(is_gray, grey, g) - mean_g) / std_g, mask=inside)
    tl.store(there + 2 * by_channel, (tl.where(is_gray, grey, b) - mean_b) / std_b, mask=inside)
