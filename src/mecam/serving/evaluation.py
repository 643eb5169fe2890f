"""The result of an evaluation: values, text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mecam.columns import aligned
from mecam.serving.tally import BINS, Bin, Interval, Tally
from mecam.splits import is_majority, mean_interval

WHOLE = 24  # classes up to which the confusion matrix is printed
PAIRS = 30  # most frequent confusions printed instead


@dataclass(frozen=True)
class ClassResult:
    """The images of a class."""

    name: str
    images: int
    accuracy: float | None  # None: no images
    confused_with: str | None  # the wrong class predicted most often; None: no mistakes
    confused: int  # how often


@dataclass(frozen=True)
class DomainResult:
    """The images of a domain."""

    name: str
    images: int
    accuracy: float
    interval: Interval
    balanced_accuracy: float
    calibration_error: float
    mean_confidence: float


@dataclass(frozen=True, repr=False)
class Evaluation:
    """A model on labelled images. Accuracies and errors are shares between 0 and 1."""

    images: int
    accuracy: float
    interval: Interval  # 95 %, over images (Wilson)
    balanced_accuracy: float  # the mean over classes that have images
    calibration_error: float  # expected calibration error, 15 bins
    mean_confidence: float
    calibration: tuple[Bin, ...]  # images, mean confidence and accuracy of each bin that has images
    classes: tuple[ClassResult, ...]  # in the model's order
    confusion: tuple[tuple[int, ...], ...]  # images by label (rows) and predicted class (columns)
    domains: tuple[DomainResult, ...]  # empty if the images have no domains
    domain_mean: float | None  # mean accuracy of the domains; None: fewer than two
    domain_interval: Interval | None  # its 95 % interval, over domains (Student's t)
    unreadable: tuple[str, ...]  # a message per image that cannot be read; these are not counted
    ignored: tuple[str, ...]  # files and folders that are not labelled images
    stopped: str | None  # where the model's run was stopped, if it has not finished
    novelty: float | None = None  # of all images together: above 1, they are unlike all training domains
    nearest: str | None = None  # the training domain nearest to them

    def __repr__(self) -> str:
        return (
            f"<Evaluation: accuracy {_percent(self.accuracy)} ({_between(self.interval)}), balanced "
            f"{_percent(self.balanced_accuracy)}, calibration error {_percent(self.calibration_error)}, "
            f"{self.images:,} images, {len(self.unreadable):,} unreadable>"
        )

    def __str__(self) -> str:
        return "\n\n".join("\n".join(block) for block in self._blocks())

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        return asdict(self)

    def facts(self) -> list[tuple[str, str, str]]:
        """Return name, value and explanation of each number on the whole set."""
        unread = f"; not counted: {len(self.unreadable):,} unreadable" if self.unreadable else ""
        rows = [
            ("images", f"{self.images:,}", f"{len(self.classes)} classes{unread}"),
            ("accuracy", _percent(self.accuracy), f"95 % interval over images: {_between(self.interval)}"),
            ("balanced accuracy", _percent(self.balanced_accuracy), "mean over classes with images"),
            ("mean confidence", _percent(self.mean_confidence), "probability of the predicted class"),
            ("calibration error", _percent(self.calibration_error), f"expected calibration error, {BINS} bins"),
        ]
        if self.novelty is not None:
            what = f"above 1: unlike all domains of training; the nearest is {self.nearest}"
            rows.append(("novelty", f"{self.novelty:.2f}", what))
        if self.domain_mean is not None and self.domain_interval is not None:
            what = f"95 % interval over {len(self.domains)} domains: {_between(self.domain_interval)}"
            rows.insert(2, ("mean of domains", _percent(self.domain_mean), what))
        return rows

    def warnings(self) -> list[str]:
        """Return what puts the accuracy into doubt: naming the most frequent class alone would reach about the same."""
        largest = max(self.classes, key=lambda one: one.images)
        share, classes = largest.images / self.images, sum(one.images > 0 for one in self.classes)
        if classes < 2 or not is_majority(self.accuracy, share, classes):
            return []
        return [
            f"the accuracy, {_percent(self.accuracy)}, is about the share of the most frequent class, {largest.name} "
            f"({_percent(share)}); the balanced accuracy is {_percent(self.balanced_accuracy)}"
        ]

    def class_rows(self) -> list[tuple[str, ...]]:
        """Return a table of the classes, with its head."""
        rows: list[tuple[str, ...]] = [("class", "images", "accuracy", "most frequent confusion")]
        for one in self.classes:
            confusion = f"{one.confused_with} ({one.confused:,})" if one.confused else "-"
            rows.append(
                (one.name, f"{one.images:,}", "-" if one.accuracy is None else _percent(one.accuracy), confusion)
            )
        return rows

    def domain_rows(self) -> list[tuple[str, ...]]:
        """Return a table of the domains, with its head."""
        rows: list[tuple[str, ...]] = [
            ("domain", "images", "accuracy", "95 % interval", "balanced", "calibration error", "mean confidence")
        ]
        for one in self.domains:
            shares = (one.balanced_accuracy, one.calibration_error, one.mean_confidence)
            own = (one.name, f"{one.images:,}", _percent(one.accuracy), _between(one.interval))
            rows.append((*own, *map(_percent, shares)))
        return rows

    def confusions(self) -> list[tuple[int, int, int]]:
        """Return label, predicted class and number of images of each confusion, the most frequent first."""
        counts = np.array(self.confusion)
        np.fill_diagonal(counts, 0)
        pairs = [
            (int(label), int(predicted), int(counts[label, predicted])) for label, predicted in np.argwhere(counts)
        ]
        return sorted(pairs, key=lambda pair: -pair[2])

    def _blocks(self) -> list[list[str]]:
        names = [one.name for one in self.classes]
        facts = self.facts()
        widths = [max(map(len, column)) for column in zip(*facts, strict=True)]
        blocks = [[f"{name:<{widths[0]}}  {value:>{widths[1]}}  {what}" for name, value, what in facts]]
        if len(self.domains) > 1:
            blocks.append(aligned(self.domain_rows()))
        blocks.append(aligned(self.class_rows()))
        if len(names) <= WHOLE:
            rows = [(name, *(f"{count:,}" for count in row)) for name, row in zip(names, self.confusion, strict=True)]
            head = "confusion matrix: a row per label, a column per predicted class"
            blocks.append([head, *aligned([("", *names), *rows])])
        elif pairs := self.confusions()[:PAIRS]:
            lines = [(names[label], names[predicted], f"{count:,}") for label, predicted, count in pairs]
            blocks.append(aligned([("label", "predicted", "images"), *lines]))
        return blocks


def summarize(
    classes: Sequence[str],
    tallies: dict[str, Tally],
    *,
    unreadable: Sequence[str],
    ignored: Sequence[str],
    stopped: str | None,
) -> Evaluation:
    """Return the evaluation behind the counts of each domain."""
    whole = Tally(len(classes))
    for tally in tallies.values():
        whole.merge(tally)
    accuracies = [tally.accuracy for tally in tallies.values()]
    several = len(tallies) > 1
    return Evaluation(
        **whole.figures(),
        calibration=whole.bins,
        classes=tuple(_class(classes, label, row) for label, row in enumerate(whole.confusion.tolist())),
        confusion=tuple(map(tuple, whole.confusion.tolist())),
        domains=tuple(DomainResult(name, **tally.figures()) for name, tally in tallies.items() if name),
        domain_mean=sum(accuracies) / len(accuracies) if several else None,
        domain_interval=mean_interval(accuracies) if several else None,
        unreadable=tuple(unreadable),
        ignored=tuple(ignored),
        stopped=stopped,
    )


def _class(classes: Sequence[str], label: int, row: Sequence[int]) -> ClassResult:
    images = sum(row)
    wrong = [0 if predicted == label else count for predicted, count in enumerate(row)]
    most = max(wrong)
    return ClassResult(
        name=classes[label],
        images=images,
        accuracy=row[label] / images if images else None,
        confused_with=classes[wrong.index(most)] if most else None,
        confused=most,
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _between(interval: Interval) -> str:
    return f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f} %"
