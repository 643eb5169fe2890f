"""Predictions on the unseen domain: the confusion matrix and the most confident mistakes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mecam.data.domains import DomainSet
from mecam.report.curves import Number, short
from mecam.report.thumbnails import Thumbnails
from mecam.runs import RunFolder

MISTAKES = 8  # shown per run
WHOLE = 24  # classes up to which the whole matrix is shown
PAIRS = 30  # most frequent confusions shown instead


@dataclass(frozen=True)
class Mistake:
    """A misclassified image."""

    name: str
    label: int
    predicted: int
    confidence: Number
    image: int | None  # its place among the thumbnails


@dataclass(frozen=True)
class Predictions:
    """A summary of a run's predictions; classes are indices into `classes`."""

    classes: list[str]
    images: int
    whole: bool  # all pairs of classes are in `counts`, not the most frequent confusions alone
    counts: list[tuple[int, int, int]]  # label, predicted, how many; none of zero
    mistakes: list[Mistake]


def predictions(folder: RunFolder, data: DomainSet | None, thumbnails: Thumbnails) -> Predictions | None:
    """Summarize a run's predictions; None if it has none. `data` is the data it was trained on, if available."""
    columns = {name: column.tolist() for name, column in folder.read_predictions().items()}
    if not columns.get("label"):
        return None
    labels, predicted = columns["label"], columns["predicted"]
    classes = class_names(folder, data, [*labels, *predicted])
    counts = Counter(zip(labels, predicted, strict=True))
    whole = len(classes) <= WHOLE
    pairs = counts if whole else Counter({pair: n for pair, n in counts.items() if pair[0] != pair[1]})
    wrong = sorted(
        (place for place in range(len(labels)) if labels[place] != predicted[place]),
        key=lambda place: -columns["confidence"][place],
    )
    mistakes = []
    for place in wrong[:MISTAKES]:
        domain, index = columns["domain"][place], columns["index"][place]
        name = data.sample_name(domain, index) if data is not None else f"image {index}"
        image = thumbnails.add(data, domain, index) if data is not None else None
        mistakes.append(Mistake(name, labels[place], predicted[place], short(columns["confidence"][place]), image))
    kept = pairs.most_common(None if whole else PAIRS)
    return Predictions(classes, len(labels), whole, [(*pair, count) for pair, count in kept], mistakes)


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
