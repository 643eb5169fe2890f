"""Decode image files of any mode to RGB pixels.

Pillow takes up to 4 bytes per pixel for JPEG and PNG, 7 to 12 for progressive JPEG and 16 for WebP. Conversion adds the
result and one strip at a time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError, features

from mecam.data.domains import DataError

MAX_PIXELS = 89_478_485  # where Pillow warns: a quarter of a gigabyte of RGB
PIXELS_AT_ONCE = 16 << 20  # decoded at the same time; a larger image is decoded alone
LARGE_PIXELS = 16 << 20  # above it, resampling does not copy the image
STRIP_PIXELS = 1 << 20
FORMATS = ("JPEG", "PNG", "BMP", "DIB", "WEBP", "PPM", "TIFF", "GIF")  # EPS and the like would run programs
BRANDS = {b"avif": "AVIF", b"avis": "AVIF", b"heic": "HEIF", b"heix": "HEIF", b"hevc": "HEIF", b"mif1": "HEIF"}
UPRIGHT = {  # by EXIF orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
ON_ITS_SIDE = (5, 6, 7, 8)  # rows are columns of the file
FROM_THE_END = (3, 4, 7, 8)  # rows are in reverse order

Source = Path | bytes | IO[bytes]


class NeedsPackageError(UnidentifiedImageError):
    """An image in a format that a package reads which is not installed."""


@dataclass(frozen=True)
class Resampled:
    """A resized picture, and its original size."""

    pixels: NDArray[np.uint8]  # (height, width, 3)
    width: int
    height: int


class Room:
    """A limit on the pixels that threads decode at the same time, and so on their memory: a semaphore with weights."""

    def __init__(self, pixels: int | None = None) -> None:
        self._pixels = self._free = PIXELS_AT_ONCE if pixels is None else pixels
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, pixels: int) -> Iterator[None]:
        """Reserve room for this many pixels, and wait for it; an image above the limit is decoded alone."""
        pixels = min(pixels, self._pixels)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= pixels)
            self._free -= pixels
        try:
            yield
        finally:
            with self._changed:
                self._free += pixels
                self._changed.notify_all()

    def for_image(self, source: Source | Image.Image) -> AbstractContextManager[None]:
        """Wait until this image may be decoded. One that cannot be read takes no room."""
        try:
            width, height = source.size if isinstance(source, Image.Image) else measure(source, upright_up_to=0)
        except Exception:  # decoders raise anything on damaged files; decoding reports it
            height = width = 0
        return self.taken(height * width)


def decode(source: Source | Image.Image, *, name: str, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """Decode a file, its bytes or a Pillow image to uint8 (height, width, 3); errors call it `name`.

    As in a viewer, the EXIF orientation is applied, transparent pixels are blended with white, and an animation gives
    its first frame. 16 bits are scaled to 8. Images of more than `max_pixels` are refused before they are decoded;
    beyond 178,956,970 pixels Pillow refuses too, unless PIL.Image.MAX_IMAGE_PIXELS is raised.
    """
    with _opened(source, name, max_pixels) as image:
        image.load()
        width, height = _upright_size(image)
        pixels = np.empty((height, width, 3), dtype=np.uint8)
        for top, strip in _strips(image, name):
            pixels[top : top + strip.height] = np.asarray(strip)
        return pixels


def resample(source: Source, *, name: str, size: tuple[int, int]) -> Resampled:
    """Decode and resize to this height and width by Pillow's bilinear, antialiased filter.

    Pillow filters rows and columns separately, with 8 bits in between. A large image that is not upright RGB is
    filtered in strips, rows first, which may change a value by one level.
    """
    height, width = size
    with _opened(source, name, MAX_PIXELS) as image:
        if max(image.size) * max(size) > MAX_PIXELS // 4:  # the intermediate image between rows and columns
            raise DataError(
                f"{name} is too thin: {image.width} x {image.height} cannot be resampled to {width} x {height} in "
                "reasonable memory; crop the image or remove the file"
            )
        image.load()
        upright = _upright_size(image)
        rgb = image
        if image.mode != "RGB" or _orientation(image) != 1 or image.has_transparency_data:
            across = width if image.width * image.height > LARGE_PIXELS else upright[0]
            rgb = Image.new("RGB", (across, upright[1]))
            for top, strip in _strips(image, name):
                rgb.paste(strip.resize((across, strip.height), Image.Resampling.BILINEAR), (0, top))
        return Resampled(np.asarray(rgb.resize((width, height), Image.Resampling.BILINEAR)), *upright)


def measure(source: Source, *, upright_up_to: int) -> tuple[int, int]:
    """Read height and width from the file's header; upright if no side is longer than `upright_up_to`.

    A PNG may store its orientation at its end, so a large one would have to be decoded.
    """
    with read_header(source) as image:
        width, height = image.size
        if max(image.size) > upright_up_to or image.format == "TIFF":  # Pillow rotates TIFF itself
            return height, width
        width, height = _upright_size(image)
        return height, width


@contextmanager
def _opened(source: Source | Image.Image, name: str, max_pixels: int) -> Iterator[Image.Image]:
    """Open the image; errors of reading become a DataError with its name."""
    try:
        with ExitStack() as files:
            if isinstance(source, Image.Image):
                image = source  # open already, and closed by the caller
            else:
                # opened here: Pillow maps files that it opens itself, and then rotates some TIFF wrongly
                file = files.enter_context(source.open("rb")) if isinstance(source, Path) else source
                image = files.enter_context(read_header(file))
            _check_size(image, name, max_pixels)
            yield image
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"there is no file {name}") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _bomb_error(name, "it", max_pixels) from error
    except NeedsPackageError as error:
        raise DataError(f"{name} {error}, or convert the file") from error
    except UnidentifiedImageError as error:
        if not isinstance(source, Image.Image) and _is_empty(source):
            raise DataError(f"{name} is empty (0 bytes); fetch the file again or remove it") from error
        raise DataError(
            f"{name} cannot be read as an image: it is none of {', '.join(FORMATS)}, AVIF and HEIC, or its first "
            "bytes are damaged; fetch the file again or remove it"
        ) from error
    except Exception as error:  # decoders raise struct.error, SyntaxError, EOFError, ... on damaged files
        raise DataError(
            f"{name} cannot be read as an image ({type(error).__name__}: {error}); fetch the file again or remove it"
        ) from error


def read_header(source: Source) -> Image.Image:
    """Open an image file; its pixels are not read."""
    file = BytesIO(source) if isinstance(source, bytes) else source
    try:
        return Image.open(file, formats=FORMATS)
    except UnidentifiedImageError:
        if (name := _newer_format(file)) is None:
            raise
    return Image.open(file, formats=(name,))


def _newer_format(file: Path | IO[bytes]) -> str | None:
    """Return Pillow's name of an AVIF or HEIC file, once it can be opened; None for others."""
    if isinstance(file, Path):
        with file.open("rb") as opened:
            start = opened.read(32)
    else:
        file.seek(0)
        start = file.read(32)
    brands = [start[8:12], *(start[place : place + 4] for place in range(16, len(start), 4))]
    found = [BRANDS[brand] for brand in brands if brand in BRANDS] if start[4:8] == b"ftyp" else []
    if not found:
        return None
    if "AVIF" in found:
        if "avif" not in features.modules or not features.check("avif"):
            raise NeedsPackageError("is an AVIF image, which a newer Pillow reads: pip install --upgrade pillow")
        return "AVIF"
    try:
        import pillow_heif
    except ImportError as error:
        raise NeedsPackageError("is a HEIC image, which pillow-heif reads: pip install pillow-heif") from error
    pillow_heif.register_heif_opener()
    return "HEIF"


def _is_empty(source: Source) -> bool:
    if isinstance(source, Path):
        return source.stat().st_size == 0
    return not source if isinstance(source, bytes) else source.seek(0, os.SEEK_END) == 0


def _check_size(image: Image.Image, name: str, max_pixels: int) -> None:
    width, height = image.size
    if not width * height:
        raise DataError(f"{name} has no pixels ({width} x {height}); remove the file")
    if width * height > max_pixels:
        raise _bomb_error(name, f"{width} x {height}", max_pixels)


def _bomb_error(name: str, size: str, max_pixels: int) -> DataError:
    return DataError(
        f"{name} is refused as a decompression bomb: {size} is more than {max_pixels:,} pixels; shrink the image, or "
        "raise max_pixels if you trust the file"
    )


def _strips(image: Image.Image, name: str) -> Iterator[tuple[int, Image.Image]]:
    """Yield strips of upright rows in RGB, each with the index of its first row."""
    orientation, (width, height) = _orientation(image), _upright_size(image)
    rows = max(1, STRIP_PIXELS // width)
    for top in range(0, height, rows):
        bottom = min(top + rows, height)
        start, end = (height - bottom, height - top) if orientation in FROM_THE_END else (top, bottom)
        strip = image.crop((start, 0, end, width) if orientation in ON_ITS_SIDE else (0, start, width, end))
        yield top, _rgb(strip.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else strip, name)


def _upright_size(image: Image.Image) -> tuple[int, int]:
    """Return width and height with the EXIF orientation applied."""
    return (image.height, image.width) if _orientation(image) in ON_ITS_SIDE else image.size


def _orientation(image: Image.Image) -> int:
    value = image.getexif().get(ExifTags.Base.Orientation)
    return value if value in UPRIGHT else 1


def _rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode == "F":
        raise DataError(f"{name} has floating-point pixels, whose range is not known; save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        return _from_16_bits(image, name).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def _from_16_bits(image: Image.Image, name: str) -> Image.Image:
    """Scale 0..65535 to 0..255, rounded; Pillow's own conversion clips values above 255 to white."""
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise DataError(f"{name} has 32-bit pixels, whose range is not known; save it with 8 or 16 bits")
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))
