"""DomainBed's training and evaluation transforms for a batch, on the device of its images.

Random resized crop, horizontal flip, colour jitter in a random order, grayscale and normalization, drawn for each
image. `Augmentation.draw` and `Augmentation.apply` do not wait for the device, and can be captured in a CUDA graph with
generator=None.

The operations are torchvision's on floating-point images, except that grey is Pillow's .299 R + .587 G + .114 B, which
keeps white white (torchvision uses .2989 R), and that nothing is rounded to 8 bits between operations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor

from mecam._triton import kernels
from mecam.preprocessing import IMAGENET, Interpolation, Preprocessing

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
AREA = (0.7, 1.0)  # of a crop, relative to the image's
ASPECT = (3 / 4, 4 / 3)  # of a crop: width / height, in pixels of the original image
JITTER = 0.3  # brightness, contrast and saturation are multiplied by 1 +- JITTER; hue is shifted by a part of a turn
GRAYSCALE = 0.1  # probability
TRIES = 10  # before the fallback to the largest central crop, as in torchvision
LUMA = (0.299, 0.587, 0.114)
# On a CPU a batch is processed in pieces of this many output values, which stay in the cache.
PIECE = 1 << 19
CUBIC = -0.5  # as in Pillow and in torch's antialiased resampling


@dataclass(frozen=True)
class Draws:
    """The random values for each image of a batch."""

    box: Tensor  # (B, 4) top, left, height, width in pixels of the stored image
    flip: Tensor  # (B,) bool, left and right
    order: Tensor  # (B, 4) the operations BRIGHTNESS, ... in their order
    factors: Tensor  # (B, 4) for BRIGHTNESS, CONTRAST, SATURATION (identity: 1) and HUE (identity: 0)
    gray: Tensor  # (B,) bool
    vertical: Tensor  # (B,) bool, a flip of top and bottom

    def __getitem__(self, images: slice) -> Self:
        return type(self)(*(getattr(self, field.name)[images] for field in fields(self)))


@dataclass(frozen=True)
class Augmentation:
    """Random transforms of training images. The defaults are DomainBed's.

    Args:
        preprocessing: size, normalization and resampling of the output.
        crop: draw random crops; otherwise the whole image is used as `preprocessing.resize` says.
        flip, vertical: probabilities; `flip` is horizontal.
        colors: jitter colors, and convert some images to grayscale.
    """

    preprocessing: Preprocessing = IMAGENET
    crop: bool = True
    flip: float = 0.5
    vertical: float = 0.0
    colors: bool = True

    def __call__(
        self, images: Tensor, aspects: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Transform uint8 (B, 3, H, W) to float (B, 3, size, size) on the same device; `aspects` as in `draw`."""
        return self.apply(images, self.draw(images, aspects, generator=generator))

    def draw(self, images: Tensor, aspects: Tensor | None = None, *, generator: torch.Generator | None = None) -> Draws:
        """Draw random values for these images on their device; `generator` must be on it (None: the default one).

        `aspects` is the width / height of the original images; None if they were not resampled for the store.
        """
        count, device = len(images), images.device

        def uniform(*size: int) -> Tensor:
            return torch.rand(count, *size, dtype=torch.float32, device=device, generator=generator)

        box = self._draw_box(images, aspects, uniform(TRIES, 2), uniform(2))
        if not self.crop:
            box = _whole(images, aspects, self.preprocessing, like=box).expand_as(box)
        flip = uniform() < self.flip
        order = uniform(4).argsort(dim=1)
        factors = uniform(4)
        jitter = JITTER if self.colors else 0.0
        for column, middle in zip(factors.unbind(1), (1, 1, 1, 0), strict=True):
            low, high = middle - jitter, middle + jitter
            column.mul_(high - low).add_(low)
        gray = uniform() < (GRAYSCALE if self.colors else 0.0)
        vertical = uniform() < self.vertical if self.vertical else torch.zeros_like(gray)
        return Draws(box, flip, order, factors, gray, vertical)

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        """Crop, flip, jitter the colours, convert to grayscale and normalize, as drawn."""
        own = self.preprocessing
        out = _output(images, own.size)
        with torch.autocast(images.device.type, enabled=False):
            if gpu := self._kernels(images):
                if _kernels_crop(own):
                    cropped = torch.empty(out.shape, device=out.device)
                    plain = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)  # no normalization
                    cubic = own.interpolation == "bicubic"
                    gpu.crop(images, draws.box, draws.flip, *plain, cubic=cubic, out=cropped)
                else:
                    cropped = _crop(images, draws.box, own.size, draws.flip, own.interpolation)
                gpu.colour(cropped, draws.order, draws.factors, draws.gray, own.mean, own.std, out=out)
            else:
                for piece in _pieces(out):
                    _normalize(self._colours(images[piece], draws[piece]), own, out=out[piece])
        return torch.where(_per_image(draws.vertical), out.flip(2), out) if self.vertical else out

    def _colours(self, images: Tensor, draws: Draws) -> Tensor:
        """Return the images in [0, 1], before normalization."""
        x = _crop(images, draws.box, self.preprocessing.size, draws.flip, self.preprocessing.interpolation)
        if not self.colors:
            return x
        x = _jitter(x, draws.order, draws.factors)
        return torch.where(_per_image(draws.gray), _luma(x), x)

    def _kernels(self, images: Tensor) -> Any:
        return _kernels_for(images)

    def _draw_box(self, images: Tensor, aspects: Tensor | None, shape: Tensor, place: Tensor) -> Tensor:
        """Return the first of ten random boxes that fits into the image, else the largest central one."""
        stored = images.shape[-2], images.shape[-1]
        ratio = torch.full_like(place[:, :1], stored[1] / stored[0]) if aspects is None else aspects[:, None]
        scale, turn = shape.unbind(-1)
        area = _between(scale, *AREA)
        aspect = _between(turn, *map(math.log, ASPECT)).exp()
        # In an image of width `ratio` and height 1, a box of aspect a and relative area s is sqrt(s ratio a) wide.
        tall, wide = (area * ratio / aspect).sqrt(), (area * aspect / ratio).sqrt()
        nearest = ratio.clamp(*ASPECT)  # the fallback's aspect: one side is full, the other the longest allowed
        tall = torch.cat([tall, (ratio / nearest).clamp(max=1)], dim=1)
        wide = torch.cat([wide, (nearest / ratio).clamp(max=1)], dim=1)
        sizes = torch.stack([(tall * stored[0]).round(), (wide * stored[1]).round()], dim=-1)
        limits = _constants(stored, sizes)
        fits = ((sizes >= 1) & (sizes <= limits)).all(dim=-1)
        fits[:, TRIES] = True
        first = fits.int().argmax(dim=1)
        size = sizes.take_along_dim(first[:, None, None], dim=1)[:, 0].clamp(min=1)
        free = limits - size
        random = (place * (free + 1)).floor().minimum(free)
        corner = torch.where((first == TRIES)[:, None], (free / 2).floor(), random)
        return torch.cat([corner, size], dim=1)


def evaluate_transform(images: Tensor, preprocessing: Preprocessing, aspects: Tensor | None = None) -> Tensor:
    """Preprocess uint8 (B, 3, H, W) to float (B, 3, size, size).

    `aspects` is the width / height of the original images; None if they were not resampled for the store.
    """
    size, interpolation = preprocessing.size, preprocessing.interpolation
    out = _output(images, size)
    box = _whole(images, aspects, preprocessing, like=out)
    same = images.shape[-2:] == (size, size) and (aspects is None or preprocessing.resize == "squash")
    with torch.autocast(images.device.type, enabled=False):
        if _kernels_crop(preprocessing) and (gpu := _kernels_for(images)):
            cubic = interpolation == "bicubic"
            gpu.crop(images, box, None, preprocessing.mean, preprocessing.std, cubic=cubic, out=out)
            return out
        for piece in _pieces(out):
            part, own = images[piece], box if len(box) == 1 else box[piece]
            x = part / 255 if same else _crop(part, own, size, interpolation=interpolation)
            _normalize(x, preprocessing, out=out[piece])
    return out


def _whole(images: Tensor, aspects: Tensor | None, preprocessing: Preprocessing, *, like: Tensor) -> Tensor:
    """Return the box that becomes the output in evaluation, (B, 4), or (1, 4) for all images.

    In pixels of the stored images, which may have lost their aspect ratio. A letterbox is larger than its image.
    """
    sides = _constants(tuple(images.shape[-2:]), like)
    if preprocessing.resize == "squash":
        return torch.cat([torch.zeros_like(sides), sides])[None]
    ratio = (sides[1] / sides[0])[None] if aspects is None else aspects.to(like.dtype)
    if preprocessing.resize == "crop":
        shares = torch.stack([ratio, 1 / ratio], dim=1).clamp(max=1)
        return torch.cat([sides * (1 - shares) / 2, sides * shares], dim=1)
    size = preprocessing.size  # of which the image fills whole pixels
    filled = (size * torch.stack([1 / ratio, ratio], dim=1).clamp(max=1)).round().clamp(min=1)
    return torch.cat([-((size - filled) / 2).round(), torch.full_like(filled, size)], dim=1) * (sides / filled).repeat(
        1, 2
    )


def _crop(
    images: Tensor, box: Tensor, size: int, flip: Tensor | None = None, interpolation: Interpolation = "bilinear"
) -> Tensor:
    """Resample each image's box to size x size (antialiased) in [0, 1], flipped on request.

    One box may serve all images.
    """
    count, channels, height, width = images.shape
    top, left, tall, wide = box.unbind(1)
    rows = (_resampling(top, tall, size, height, interpolation) / 255).expand(count, size, height)
    columns = _resampling(left, wide, size, width, interpolation, flip).mT.expand(count, width, size)
    x = images.to(box.dtype, memory_format=torch.contiguous_format)
    x = torch.bmm(x.view(count, channels * height, width), columns)
    out = torch.empty(count, channels, size, size, dtype=x.dtype, device=x.device)
    for channel, plane in enumerate(x.view(count, channels, height, size).unbind(1)):
        torch.bmm(rows, plane, out=out[:, channel])
    return out if interpolation == "bilinear" else out.clamp_(0, 1)  # bicubic weights overshoot


def _resampling(
    start: Tensor, length: Tensor, size: int, pixels: int, interpolation: Interpolation, mirror: Tensor | None = None
) -> Tensor:
    """Return (B, size, pixels): the weights of the pixels in each of `size` samples of [start, start + length).

    The kernel around a sample's centre is a triangle, two pixels of the coarser grid wide, or a cubic, four pixels
    wide. Pixels outside the interval have weight 0, as if the image had been cropped first. Samples outside of the
    image have no weights: they are black.
    """
    start, length = start[:, None, None], length[:, None, None]
    samples = torch.arange(size, dtype=start.dtype, device=start.device)[:, None]
    if mirror is not None:
        samples = torch.where(mirror[:, None, None], size - 1 - samples, samples)
    step = length / size
    pixel = torch.arange(pixels, dtype=start.dtype, device=start.device) + 0.5
    center = start + (samples + 0.5) * step
    distance = (pixel - center).abs_() / step.clamp(min=1)
    weights = (1 - distance).clamp_(min=0) if interpolation == "bilinear" else _cubic(distance)
    weights = weights.mul_((pixel > start) & (pixel < start + length))
    total = weights.sum(dim=-1, keepdim=True)
    return weights / torch.where((center > 0) & (center < pixels), total, math.inf)


def _cubic(x: Tensor) -> Tensor:
    """Return Keys' cubic kernel at x >= 0; it is 0 from 2 on."""
    near = ((CUBIC + 2) * x - (CUBIC + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * CUBIC
    return torch.where(x < 1, near, far).mul_(x < 2)


def _jitter(x: Tensor, order: Tensor, factors: Tensor) -> Tensor:
    """Change brightness, contrast, saturation and hue of each image in its own order; overwrites x."""
    # Hue is the most expensive, so it is computed once: three slots before it, hue, three slots after it. A factor of 1
    # skips the operations of an image that belong to the other side.
    factor = factors.gather(1, order)
    place = (order == HUE).int().argmax(dim=1)
    for slot in (0, 1, 2):
        x = _blend(x, order[:, slot], torch.where(slot < place, factor[:, slot], 1))
    x = _shift_hue(x, factors[:, HUE])
    for slot in (1, 2, 3):
        x = _blend(x, order[:, slot], torch.where(slot > place, factor[:, slot], 1))
    return x


def _blend(x: Tensor, operation: Tensor, factor: Tensor) -> Tensor:
    """Return factor x + (1 - factor) reference: black (brightness), mean grey (contrast), pixel grey (saturation)."""
    gray = _luma(x)
    mean = gray.mean(dim=(2, 3), keepdim=True)
    rest = _per_image(1 - factor)
    reference = gray * _per_image(operation == SATURATION) + mean * _per_image(operation == CONTRAST)
    return x.mul_(_per_image(factor)).add_(reference.mul_(rest)).clamp_(0, 1)


def _shift_hue(x: Tensor, turn: Tensor) -> Tensor:
    """Shift the hue in HSV by a fraction of a full turn."""
    red, green, blue = x.unbind(1)
    high = red.maximum(green).maximum(blue)
    low = red.minimum(green).minimum(blue)
    chroma = high - low
    scale = 1 / chroma.clamp(min=1e-12)  # grey has no hue: its value is multiplied by chroma = 0
    hue = torch.where(
        high == red,
        (green - blue) * scale,
        torch.where(high == green, (blue - red) * scale + 2, (red - green) * scale + 4),
    )
    hue += 6 * turn[:, None, None]
    hue -= (hue / 6).floor_().mul_(6)
    parts = (hue - 3).abs_() - 1, 2 - (hue - 2).abs_(), 2 - (hue - 4).abs_()  # of the chroma in red, green and blue
    return torch.stack([torch.addcmul(low, chroma, part.clamp_(0, 1)) for part in parts], dim=1)


def _luma(x: Tensor) -> Tensor:
    red, green, blue = x[:, 0:1], x[:, 1:2], x[:, 2:3]
    return (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def _normalize(x: Tensor, preprocessing: Preprocessing, *, out: Tensor) -> None:
    mean, std = (_constants(values, x)[:, None, None] for values in (preprocessing.mean, preprocessing.std))
    torch.sub(x, mean, out=out).div_(std)


def _constants(values: tuple[float, ...], like: Tensor) -> Tensor:
    """Return a vector filled on the tensor's device: a copy from the host would synchronize."""
    return torch.cat([torch.full((1,), value, dtype=like.dtype, device=like.device) for value in values])


def _between(uniform: Tensor, low: float, high: float) -> Tensor:
    return uniform * (high - low) + low


def _per_image(values: Tensor) -> Tensor:
    return values[:, None, None, None]


def _output(images: Tensor, size: int) -> Tensor:
    # channels last is fastest for networks on a GPU; on a CPU the pieces are computed plane by plane
    layout = torch.channels_last if images.is_cuda else torch.contiguous_format
    return torch.empty(len(images), 3, size, size, dtype=torch.float32, device=images.device, memory_format=layout)


def _kernels_for(images: Tensor) -> Any:
    """Return the Triton kernels for images on a GPU."""
    return kernels("mecam.data._kernels") if images.is_cuda else None


def _kernels_crop(preprocessing: Preprocessing) -> bool:
    """Return whether the kernels' crops, which lie inside of the image, are those of this preprocessing."""
    return preprocessing.resize != "letterbox"


def _pieces(out: Tensor) -> Iterator[slice]:
    """Split the batch into pieces that fit into a CPU's cache; other devices get it whole."""
    count = len(out)
    step = max(1, PIECE // out[0].numel()) if count and out.device.type == "cpu" else max(1, count)
    return (slice(start, start + step) for start in range(0, count, step))
