"""Predict images with model.onnx and preprocessing.json, the files beside this one.

    pip install numpy onnxruntime pillow
    python infer.py photo.jpg ...

Print image, class and probability as CSV. An image that cannot be read is reported, with exit code 1.
"""

import csv
import json
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from PIL import Image, ImageOps

HERE = Path(__file__).parent
KNOWN = ("JPEG", "PNG", "BMP", "DIB", "WEBP", "PPM", "TIFF", "GIF", "AVIF", "HEIF")
Image.init()
with suppress(ImportError):  # HEIC: pip install pillow-heif
    from pillow_heif import register_heif_opener

    register_heif_opener()
FORMATS = [name for name in KNOWN if name in Image.OPEN]  # others may run programs


def main(images: list[str]) -> int:
    if not images:
        sys.exit("usage: python infer.py IMAGE ...")
    facts = json.loads((HERE / "preprocessing.json").read_text(encoding="utf-8"))
    session = onnxruntime.InferenceSession(HERE / "model.onnx", providers=["CPUExecutionProvider"])
    rows = csv.writer(sys.stdout, lineterminator="\n")
    rows.writerow(["image", "class", "probability"])
    unreadable = 0
    warnings.simplefilter("error", Image.DecompressionBombWarning)  # refuse images above Image.MAX_IMAGE_PIXELS
    for image in images:
        try:
            pixels = preprocess(read(image), facts["preprocessing"])
        except Exception as error:  # decoders raise anything on a damaged file
            print(f"{image} cannot be read as an image: {error}", file=sys.stderr)
            unreadable += 1
            continue
        (logits,) = session.run([facts["output"]["name"]], {facts["input"]["name"]: pixels[None]})
        shares = softmax(logits[0].astype(np.float64))
        best = int(shares.argmax())
        rows.writerow([*map(as_text, (image, facts["classes"][best])), round(float(shares[best]), 6)])
    return 1 if unreadable else 0


def as_text(name: str) -> str:
    """Return a name for a cell of a CSV file. A spreadsheet would run one that starts like a formula."""
    name = name.replace("\r", "\\r")  # which would begin a line
    return f"'{name}" if name.startswith(("=", "+", "-", "@", "\t", "\r")) else name


def read(path: str) -> Image.Image:
    """Decode to upright 8-bit RGB; transparent pixels are blended with white."""
    with open(path, "rb") as file, Image.open(file, formats=FORMATS) as opened:
        image = ImageOps.exif_transpose(opened)
    if image.mode.startswith(("I", "F")):
        values = np.asarray(image)
        if image.mode == "F" or values.min() < 0 or values.max() > 65535:
            raise ValueError("the range of its pixels is not known; save it with 8 or 16 bits")
        image = Image.fromarray(((values.astype(np.int64) + 128) // 257).astype(np.uint8))
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return image.convert("RGB")


def preprocess(image: Image.Image, facts: dict[str, Any]) -> NDArray[np.float32]:
    """Resize and normalize to channels, rows, columns."""
    size = facts["image_size"]
    kernel, resize = Image.Resampling[facts["interpolation"].upper()], facts.get("resize", "squash")
    if resize == "crop":
        side = min(image.size)
        left, top = ((length - side) // 2 for length in image.size)
        image = image.crop((left, top, left + side, top + side))
    letterbox = resize == "letterbox"
    resized = ImageOps.pad(image, (size, size), kernel) if letterbox else image.resize((size, size), kernel)
    pixels = (np.asarray(resized) / 255 - facts["mean"]) / facts["std"]
    return np.asarray(pixels.transpose(2, 0, 1), dtype=np.float32)


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shares = np.exp(logits - logits.max())
    return np.asarray(shares / shares.sum())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
