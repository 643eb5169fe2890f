"""Triton kernels for augmentation: one for crops, two for colour jitter, grayscale and normalization.

Buys: augmenting 96 images of 224 pixels takes 0.4 instead of 3.2 ms on an H200 (benchmarks/results/gpu.md).

The crop reads only the pixels with nonzero weights. Contrast needs the mean grey of the image after the operations
before it, so the first colour kernel applies these and sums the grey, and the second applies all operations.
"""

# mypy: ignore-errors
# Triton's types are not Python's, and Triton may not be installed.
from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

PIXELS, SAMPLES = 1024, 256  # per program
CUBIC_REACH = 2  # of a sample, relative to bilinear


def crop(images: Tensor, box: Tensor, flip: Tensor | None, mean, std, *, cubic: bool, out: Tensor) -> None:
    """Crop uint8 images (B, 3, H, W) to boxes, resample, flip and normalize; one box may serve all images."""
    count, _, height, width = images.shape
    size = out.shape[-1]
    # neighbouring samples are at most pixels / size apart, and each reaches that far on either side; a cubic twice
    reach = CUBIC_REACH if cubic else 1
    taps = [math.ceil(2 * reach * max(1.0, pixels / size)) for pixels in (height, width)]
    grid = (count, triton.cdiv(size * size, SAMPLES))
    sizes = size, *taps, box.stride(0) if len(box) > 1 else 0
    strides = *images.stride(), *out.stride()
    mirrors = flip is not None
    tensors = images, box, flip if mirrors else box, out
    _crop[grid](*tensors, *sizes, *mean, *std, *strides, mirrors=mirrors, reach=reach, block=SAMPLES)


def colour(x: Tensor, order: Tensor, factors: Tensor, gray: Tensor, mean, std, *, out: Tensor) -> None:
    """Apply the colour operations of `Augmentation.apply` to contiguous x (B, 3, H, W) in [0, 1]."""
    count, _, height, width = x.shape
    parts = triton.cdiv(height * width, PIXELS)
    sums = x.new_empty(count, parts)
    images = x, order, factors
    _grey[(count, parts)](*images, sums, height * width, block=PIXELS)
    rest = (*mean, *std, height * width, width, parts, *out.stride())
    _colour[(count, parts)](*images, gray, sums, out, *rest, block=PIXELS, parts_block=triton.next_power_of_2(parts))


@triton.jit
def _crop(
    images,
    box,
    flip,
    out,
    size,
    taps_down,
    taps_across,
    box_stride,
    mean_r,
    mean_g,
    mean_b,
    std_r,
    std_g,
    std_b,
    image_stride,
    channel_stride,
    row_stride,
    pixel_stride,
    out_image,
    out_channel,
    out_row,
    out_pixel,
    mirrors: tl.constexpr,
    reach: tl.constexpr,
    block: tl.constexpr,
):
    image = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * block + tl.arange(0, block)
    inside = place < size * size
    row, col = place // size, place % size
    own = box + image * box_stride
    top, left, tall, wide = tl.load(own), tl.load(own + 1), tl.load(own + 2), tl.load(own + 3)
    seen = col
    if mirrors:
        seen = tl.where(tl.load(flip + image) != 0, size - 1 - col, col)
    step_down, step_across = tall / size, wide / size
    wide_down, wide_across = tl.maximum(step_down, 1.0), tl.maximum(step_across, 1.0)
    centre_y, centre_x = top + (row + 0.5) * step_down, left + (seen + 0.5) * step_across
    first_y = tl.floor(centre_y - reach * wide_down - 0.5) + 1
    first_x = tl.floor(centre_x - reach * wide_across - 0.5) + 1
    start = images + image * image_stride
    r = tl.zeros((block,), dtype=tl.float32)
    g, b, down, across = r, r, r, r
    for i in range(taps_down):
        y = first_y + i
        weight_y = _weight(tl.abs(y + 0.5 - centre_y) / wide_down, reach)
        weight_y = tl.where((y + 0.5 > top) & (y + 0.5 < top + tall), weight_y, 0.0)
        down += weight_y
        across = tl.zeros((block,), dtype=tl.float32)
        for j in range(taps_across):
            x = first_x + j
            weight_x = _weight(tl.abs(x + 0.5 - centre_x) / wide_across, reach)
            weight_x = tl.where((x + 0.5 > left) & (x + 0.5 < left + wide), weight_x, 0.0)
            across += weight_x
            weight = weight_y * weight_x
            there = start + y.to(tl.int32) * row_stride + x.to(tl.int32) * pixel_stride
            counts = inside & (weight != 0)
            r += weight * tl.load(there, mask=counts, other=0).to(tl.float32)
            g += weight * tl.load(there + channel_stride, mask=counts, other=0).to(tl.float32)
            b += weight * tl.load(there + 2 * channel_stride, mask=counts, other=0).to(tl.float32)
    scale = 1.0 / (255.0 * down * across)
    r, g, b = r * scale, g * scale, b * scale
    if reach > 1:  # cubic weights overshoot
        r, g, b = _clipped(r), _clipped(g), _clipped(b)
    to = out + image * out_image + row * out_row + col * out_pixel
    tl.store(to, (r - mean_r) / std_r, mask=inside)
    tl.store(to + out_channel, (g - mean_g) / std_g, mask=inside)
    tl.store(to + 2 * out_channel, (b - mean_b) / std_b, mask=inside)


@triton.jit
def _weight(distance, reach: tl.constexpr):
    """Return a triangle for reach 1, and for 2 Keys' cubic kernel as `augment._cubic` has it."""
    weight = tl.maximum(1 - distance, 0.0)
    if reach > 1:
        near = (1.5 * distance - 2.5) * distance * distance + 1
        far = 2 - 0.5 * (((distance - 5) * distance + 8) * distance)
        weight = tl.where(distance < 1, near, tl.where(distance < 2, far, 0.0))
    return weight


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
    """Apply brightness (0), contrast (1), saturation (2) or hue (3)."""
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
    before = tl.load(order + image * 4) >= 0  # True until contrast
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
