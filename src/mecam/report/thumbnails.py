"""Small PNG images, each embedded once, up to a total size."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

from mecam.data.domains import DomainSet

SIDE = 64  # pixels
BYTES = 6_000_000  # limit for all thumbnails, in base64: a page of a thousand runs stays below 15 MB
CLASSES = 7  # shown per domain


class Thumbnails:
    """The images of a page, referred to by their index in `images`."""

    def __init__(self, most: int = BYTES) -> None:
        self.images: list[str] = []  # base64 of PNG files
        self._left = most
        self._places: dict[tuple[str, int, int], int] = {}

    def add(self, data: DomainSet, domain: int, index: int) -> int | None:
        """Return the index of this image; None when no room is left."""
        key = (data.fingerprint, domain, index)
        if key not in self._places:
            text = _png(data, domain, index)
            if len(text) > self._left:
                return None
            self._left -= len(text)
            self._places[key] = len(self.images)
            self.images.append(text)
        return self._places[key]


@dataclass(frozen=True)
class Sample:
    """An image of a class."""

    label: str
    image: int


@dataclass(frozen=True)
class Domain:
    """A domain and some of its images."""

    name: str
    count: int
    samples: list[Sample]


def samples(data: DomainSet, thumbnails: Thumbnails) -> list[Domain]:
    """Return the first image of some classes, the same classes in each domain."""
    count = len(data.classes)
    shown = sorted({round(place) for place in np.linspace(0, count - 1, min(count, CLASSES))})
    domains = []
    for domain, name in enumerate(data.domains):
        labels = data.labels(domain)
        chosen: list[Sample] = []
        for label in shown:
            places = np.flatnonzero(labels == label)
            image = thumbnails.add(data, domain, int(places[0])) if len(places) else None
            if image is not None:
                chosen.append(Sample(data.classes[label], image))
        domains.append(Domain(name, len(labels), chosen))
    return domains


def _png(data: DomainSet, domain: int, index: int) -> str:
    pixels = data.images(domain, [index])[0].permute(1, 2, 0).numpy()
    image = Image.fromarray(pixels)
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)  # smaller ones stay as they are
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()
