"""An image file to RGB pixels, whatever mode it was saved in."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from mecam.data.domains import DataError

MAX_PIXELS = 89_478_485  # Pillow's threshold, where it only warns: a quarter of a gigabyte of RGB
FORMATS = ("JPEG", "PNG", "BMP", "DIB", "WEBP", "PPM", "TIFF", "GIF")  # EPS and its like would run programs


def decode(source: Path | bytes, *, name: str, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """uint8 (height, width, 3) of the file, or of its bytes; `name` is what an error calls it.

    The picture a viewer shows: EXIF orientation applied, transparent pixels on white, the first frame of an animation,
    16 bits scaled to 8. More than `max_pixels` is refused before a pixel is decoded; beyond 178,956,970 Pillow refuses
    by itself unless PIL.Image.MAX_IMAGE_PIXELS is raised too.
    """
    if isinstance(source, bytes) and not source:
        raise DataError(f"{name} is empty (0 bytes); fetch the file again or remove it")
    try:
        with Image.open(BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as image:
            _check_size(image, name, max_pixels)
            return np.array(_rgb(ImageOps.exif_transpose(image), name))
    except DataError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(f"{name} is refused as a decompression bomb: {error}") from error
    except Exception as error:  # decoders raise struct.error, SyntaxError, EOFError, ... on damaged files
        if not isinstance(source, bytes) and source.is_file() and source.stat().st_size == 0:
            raise DataError(f"{name} is empty (0 bytes); fetch the file again or remove it") from error
        raise DataError(
            f"{name} cannot be read as an image ({type(error).__name__}: {error}); fetch the file again or remove it"
        ) from error


def _check_size(image: Image.Image, name: str, max_pixels: int) -> None:
    width, height = image.size
    if not width * height:
        raise DataError(f"{name} has no pixels ({width} x {height}); remove the file")
    if width * height > max_pixels:
        raise DataError(
            f"{name} is refused as a decompression bomb: {width} x {height} is more than {max_pixels:,} pixels; "
            "shrink the image, or raise max_pixels if you trust the file"
        )


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
    """0..65535 to 0..255, rounded; Pillow's own conversion would clip everything above 255 to white."""
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise DataError(f"{name} has 32-bit pixels, whose range is not known; save it with 8 or 16 bits")
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))
