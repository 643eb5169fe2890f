"""Images on the page: samples of each domain, and the mistakes behind each confusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mecam.data.domains import DomainSet
from mecam.report.curves import short
from mecam.runs import RunFolder
from mecam.serving.evaluation import PAIRS, WHOLE
from mecam.serving.pictures import thumbnail
from mecam.serving.tally import Tally

BYTES = 6_000_000  # limit for all thumbnails, in base64: a page of a thousand runs stays below 15 MB
CLASSES = 7  # shown per domain
MISTAKES = 400  # listed per run, the most confident ones
FIRST = 8  # of them, shown before a confusion is chosen
COLUMNS = ("domain", "index", "label", "predicted", "confidence")
MOST_CLASSES = 10_000  # without names


class Thumbnails:
    """Small JPEG images, each embedded once, up to a total size; referred to by their index in `images`."""

    def __init__(self, most: int = BYTES) -> None:
        self.images: list[str] = []  # base64 of JPEG files
        self._left = most
        self._places: dict[tuple[str, int, int], int] = {}

    def add(self, data: DomainSet, domain: int, index: int) -> int | None:
        """Return the index of this image; None when no room is left."""
        key = (data.fingerprint, domain, index)
        if key not in self._places:
            text = picture(data, domain, index)
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


@dataclass(frozen=True)
class Predictions:
    """The predictions of a run as the page has them, and the places of its mistaken images."""

    content: dict[str, Any]
    data: DomainSet | None
    places: Sequence[tuple[int, int]]  # domain and index of each mistake


def predictions(folder: RunFolder, data: DomainSet | None) -> Predictions | None:
    """Summarize a run's predictions; None if it has none. `data` is the data it was trained on, if available."""
    columns = read_columns(folder)
    if not columns:
        return None
    labels, predicted, confidence = columns["label"], columns["predicted"], columns["confidence"]
    classes = class_names(folder, data, columns)
    tally = Tally(len(classes))
    tally.add(labels, predicted, confidence)
    whole = len(classes) <= WHOLE
    pairs = [(*map(int, pair), int(tally.confusion[tuple(pair)])) for pair in np.argwhere(tally.confusion)]
    confusions = sorted((pair for pair in pairs if whole or pair[0] != pair[1]), key=lambda pair: -pair[2])
    wrong = np.flatnonzero(labels != predicted)
    listed = wrong[np.argsort(-confidence[wrong], kind="stable")][:MISTAKES].tolist()
    places = [(int(columns["domain"][place]), int(columns["index"][place])) for place in listed]
    mistakes = [
        {
            "name": image_name(data, domain, index),
            "label": int(labels[place]),
            "predicted": int(predicted[place]),
            "confidence": short(float(confidence[place])),
            "image": None,
        }
        for place, (domain, index) in zip(listed, places, strict=True)
    ]
    content = {
        "classes": classes,
        "images": len(labels),
        "wrong": len(wrong),
        "whole": whole,  # all pairs of classes are in `counts`, not the most frequent confusions alone
        "counts": confusions if whole else confusions[:PAIRS],  # label, predicted, how many; none of zero
        "calibration": [(one.images, short(one.confidence), short(one.accuracy)) for one in tally.bins],
        "mistakes": mistakes,
    }
    return Predictions(content, data, places)


def read_columns(folder: RunFolder) -> dict[str, NDArray[Any]]:
    """Return a run's predictions, as `write_predictions` was given them; nothing for a run without them."""
    columns = {name: column.numpy() for name, column in folder.read_predictions().items()}
    if not columns:
        return {}
    shapes = {columns[name].shape for name in COLUMNS if name in columns}
    whole = all(np.issubdtype(columns[name].dtype, np.integer) for name in COLUMNS[:-1] if name in columns)
    if not set(COLUMNS) <= set(columns) or len(shapes) > 1 or len(min(shapes)) != 1 or not whole:
        raise ValueError(f"{folder.predictions_file} does not hold the columns {', '.join(COLUMNS)}")
    if any((columns[name] < 0).any() for name in COLUMNS[:-1]):
        raise ValueError(f"{folder.predictions_file} has classes or images below 0")
    if not ((columns["confidence"] >= 0) & (columns["confidence"] <= 1)).all():
        raise ValueError(f"{folder.predictions_file} has a confidence that is not in [0, 1]")
    return columns if columns["label"].size else {}


def illustrate(runs: Sequence[Predictions], thumbnails: Thumbnails) -> None:
    """Add the images of mistakes while there is room: the most confident ones of each run, then the others."""
    for start, end in ((0, FIRST), (FIRST, MISTAKES)):
        for run in runs:
            for mistake, place in list(zip(run.content["mistakes"], run.places, strict=True))[start:end]:
                mistake["image"] = None if run.data is None else thumbnails.add(run.data, *place)


def image_name(data: DomainSet | None, domain: int, index: int) -> str:
    """Return the name of an image; its number if the data are not here."""
    return f"image {index}" if data is None else data.sample_name(domain, index)


def class_names(folder: RunFolder, data: DomainSet | None, columns: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return the names of the classes: the data's, or those stored with the weights, or numbers."""
    most = int(max(columns["label"].max(), columns["predicted"].max()))
    if data is not None:
        classes = list(data.classes)
    else:
        facts = folder.read_model()[1] if folder.model_file.exists() else None
        names = facts.get("classes") if isinstance(facts, dict) else None
        classes = [str(name) for name in names] if isinstance(names, list) else []
        classes = classes or [f"class {n}" for n in range(min(most, MOST_CLASSES) + 1)]
    if most >= len(classes):
        raise ValueError(f"{folder.predictions_file} has labels above the {len(classes)} classes")
    return classes


def picture(data: DomainSet, domain: int, index: int) -> str:
    """Return a small JPEG of an image, in base64."""
    return thumbnail(data.images(domain, [index])[0].permute(1, 2, 0).numpy())
