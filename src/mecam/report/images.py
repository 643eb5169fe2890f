"""Images on the page: samples of each domain, and the most confident mistakes beside the confusion matrix."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from mecam.data.domains import DomainSet
from mecam.report.curves import short
from mecam.runs import RunFolder

SIDE = 64  # pixels
BYTES = 6_000_000  # limit for all thumbnails, in base64: a page of a thousand runs stays below 15 MB
CLASSES = 7  # shown per domain
MISTAKES = 8  # shown per run
WHOLE = 24  # classes up to which the whole confusion matrix is shown
PAIRS = 30  # most frequent confusions shown instead


class Thumbnails:
    """Small PNG images, each embedded once, up to a total size; referred to by their index in `images`."""

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


def samples(data: DomainSet, thumbnails: Thumbnails) -> list[dict[str, Any]]:
    """Return the domains with the first image of some classes, the same classes in each domain."""
    count = len(data.classes)
    shown = sorted({round(place) for place in np.linspace(0, count - 1, min(count, CLASSES))})
    domains = []
    for domain, name in enumerate(data.domains):
        labels = data.labels(domain)
        firsts = {label: int(places[0]) for label in shown if len(places := np.flatnonzero(labels == label))}
        images = {label: thumbnails.add(data, domain, first) for label, first in firsts.items()}
        chosen = [{"label": data.classes[n], "image": image} for n, image in images.items() if image is not None]
        domains.append({"name": name, "count": len(labels), "samples": chosen})
    return domains


def predictions(folder: RunFolder, data: DomainSet | None, thumbnails: Thumbnails) -> dict[str, Any] | None:
    """Summarize a run's predictions; None if it has none. `data` is the data it was trained on, if available."""
    columns = {name: column.tolist() for name, column in folder.read_predictions().items()}
    if not columns.get("label"):
        return None
    labels, predicted, confidence = columns["label"], columns["predicted"], columns["confidence"]
    classes = class_names(folder, data, [*labels, *predicted])
    counts = Counter(zip(labels, predicted, strict=True))
    whole = len(classes) <= WHOLE
    pairs = counts if whole else Counter({pair: n for pair, n in counts.items() if pair[0] != pair[1]})
    wrong = [place for place in range(len(labels)) if labels[place] != predicted[place]]
    wrong.sort(key=lambda place: -confidence[place])
    mistakes = []
    for place in wrong[:MISTAKES]:
        domain, index = columns["domain"][place], columns["index"][place]
        mistakes.append(
            {
                "name": f"image {index}" if data is None else data.sample_name(domain, index),
                "label": labels[place],
                "predicted": predicted[place],
                "confidence": short(confidence[place]),
                "image": None if data is None else thumbnails.add(data, domain, index),
            }
        )
    kept = pairs.most_common(None if whole else PAIRS)
    return {
        "classes": classes,
        "images": len(labels),
        "whole": whole,  # all pairs of classes are in `counts`, not the most frequent confusions alone
        "counts": [(*pair, count) for pair, count in kept],  # label, predicted, how many; none of zero
        "mistakes": mistakes,
    }


def class_names(folder: RunFolder, data: DomainSet | None, labels: Sequence[int]) -> list[str]:
    """Return the names of the classes: the data's, or those stored with the weights, or numbers."""
    if data is not None:
        classes = list(data.classes)
    else:
        facts = folder.read_model()[1] if folder.model_file.exists() else None
        names = facts.get("classes") if isinstance(facts, dict) else None
        classes = [str(name) for name in names] if isinstance(names, list) else []
        classes = classes or [f"class {n}" for n in range(max(labels) + 1)]
    if max(labels) >= len(classes):
        raise ValueError(f"{folder.predictions_file} has labels above the {len(classes)} classes")
    return classes


def _png(data: DomainSet, domain: int, index: int) -> str:
    pixels = data.images(domain, [index])[0].permute(1, 2, 0).numpy()
    image = Image.fromarray(pixels)
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)  # smaller ones stay as they are
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()
