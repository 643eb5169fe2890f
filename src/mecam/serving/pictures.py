"""Images to predict, in the forms in which programs have them, as pixels."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from mecam.data.decode import MAX_PIXELS, Room, decode
from mecam.data.domains import DataError

SIDE = 64  # pixels of a thumbnail
# a file, its bytes, an open Pillow image, an array (height, width[, 3]) or a tensor ([3, ]height, width)
Picture = Path | str | bytes | Image.Image | NDArray[Any] | Tensor


def as_sequence(pictures: Picture | Sequence[Picture]) -> Sequence[Picture]:
    """Return the images one by one; a single one becomes a list. Arrays with four dimensions are several images."""
    if isinstance(pictures, (np.ndarray, Tensor)):
        return [pictures] if pictures.ndim < 4 else list(pictures)
    if isinstance(pictures, (Path, str, bytes, Image.Image)):
        return [pictures]
    if not (hasattr(pictures, "__len__") and hasattr(pictures, "__getitem__")):
        kinds = "paths, bytes, Pillow images, arrays or tensors"
        raise TypeError(f"expected an image or a list of images ({kinds}), got {type(pictures).__name__}")
    return pictures


def name_of(picture: Picture) -> str:
    """Return what messages call this image."""
    if isinstance(picture, (Path, str)):
        return str(picture)
    if isinstance(picture, bytes):
        return f"the image of {len(picture):,} bytes"
    if isinstance(picture, Image.Image):
        return "the image"
    kind = "tensor" if isinstance(picture, Tensor) else "array"
    return f"the {kind} of shape {tuple(picture.shape)}"


def pixels_of(picture: Picture, *, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """Return uint8 (height, width, 3); a DataError names an image that cannot be read, or a file of more pixels."""
    if isinstance(picture, Tensor):
        return _pixels(_rows_first(picture), name_of(picture), "(3, height, width) or (height, width)")
    if isinstance(picture, np.ndarray):
        return _pixels(picture, name_of(picture), "(height, width, 3) or (height, width)")
    return decode(_source(picture), name=name_of(picture), max_pixels=max_pixels)


def room_for(picture: Picture, room: Room) -> AbstractContextManager[None]:
    """Wait until a file may be decoded, in memory that threads share. Pixels that exist already take no room."""
    return nullcontext() if isinstance(picture, (Tensor, np.ndarray)) else room.for_image(_source(picture))


def _source(picture: Path | str | bytes | Image.Image) -> Path | bytes | Image.Image:
    return Path(picture) if isinstance(picture, str) else picture


def thumbnail(pixels: NDArray[np.uint8]) -> str:
    """Return a small JPEG in base64, to embed in a page."""
    image, file = Image.fromarray(pixels), io.BytesIO()
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)  # smaller ones stay as they are
    image.save(file, "JPEG", quality=85, optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def _rows_first(tensor: Tensor) -> NDArray[Any]:
    """Return (height, width, channels) on the CPU; NumPy has no bfloat16."""
    whole = tensor.detach().cpu()
    array: NDArray[Any] = (whole.float() if whole.is_floating_point() else whole).numpy()
    return array.transpose(1, 2, 0) if array.ndim == 3 else array


def _pixels(array: NDArray[Any], name: str, shapes: str) -> NDArray[np.uint8]:
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3) or not array.size:
        raise DataError(f"{name} is not an image; expected {shapes}")
    if np.issubdtype(array.dtype, np.floating):
        low, high = float(array.min()), float(array.max())
        if not (low >= 0 and high <= 1):  # NaN included
            raise DataError(
                f"{name} has values from {low:.3g} to {high:.3g}; expected floats from 0 to 1, or uint8. Pass images "
                "before normalization"
            )
        array = np.round(255 * array).astype(np.uint8)
    if array.dtype != np.uint8:
        raise DataError(f"{name} is {array.dtype}; expected uint8, or floats from 0 to 1")
    return np.ascontiguousarray(np.broadcast_to(array, (*array.shape[:2], 3)))
