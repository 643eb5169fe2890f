"""Count predictions one by one, and compute accuracy, its interval and the calibration error from the counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

BINS = 15  # of the confidence, for the calibration error
Interval = tuple[float, float]
Labels = int | Sequence[int] | NDArray[np.integer]


class Bin(NamedTuple):
    """Predictions of similar confidence."""

    images: int
    confidence: float  # mean
    accuracy: float


class Tally:
    """Counts of predictions. Its size does not depend on the number of images."""

    def __init__(self, classes: int) -> None:
        self.confusion = np.zeros((classes, classes), dtype=np.int64)  # by label and predicted class
        self.counts: NDArray[np.int64] = np.zeros(BINS, dtype=np.int64)  # predictions by bin of the confidence
        self.right: NDArray[np.float64] = np.zeros(BINS)  # right predictions by bin of the confidence
        self.confidence = np.zeros(BINS)  # sum of the confidence by bin

    def add(self, label: Labels, predicted: Labels, confidence: ArrayLike) -> None:
        """Count one prediction, or columns of predictions."""
        shares = np.nan_to_num(np.asarray(confidence, dtype=np.float64))
        places = np.minimum((shares * BINS).astype(np.int64), BINS - 1)
        np.add.at(self.confusion, (np.asarray(label), np.asarray(predicted)), 1)
        np.add.at(self.counts, places, 1)
        np.add.at(self.right, places, np.equal(label, predicted))
        np.add.at(self.confidence, places, shares)

    def merge(self, other: Tally) -> None:
        """Add the counts of another tally."""
        self.confusion += other.confusion
        self.counts += other.counts
        self.right += other.right
        self.confidence += other.confidence

    @property
    def images(self) -> int:
        return int(self.confusion.sum())

    @property
    def hits(self) -> int:
        return int(self.confusion.trace())

    @property
    def accuracy(self) -> float:
        return self.hits / self.images

    @property
    def interval(self) -> Interval:
        return wilson(self.hits, self.images)

    @property
    def balanced_accuracy(self) -> float:
        """The mean accuracy of the classes that have images."""
        counts = self.confusion.sum(1)
        return float((self.confusion.diagonal()[counts > 0] / counts[counts > 0]).mean())

    @property
    def calibration_error(self) -> float:
        """The sum over equal-width bins of the confidence of share * |accuracy - mean confidence|."""
        return float(np.abs(self.right - self.confidence).sum() / self.images)

    @property
    def bins(self) -> tuple[Bin, ...]:
        """The bins that have images, by rising confidence."""
        filled = zip(self.counts.tolist(), self.confidence.tolist(), self.right.tolist(), strict=True)
        return tuple(Bin(count, confidence / count, right / count) for count, confidence, right in filled if count)

    @property
    def mean_confidence(self) -> float:
        return float(self.confidence.sum() / self.images)

    def figures(self) -> dict[str, Any]:
        """Return what is computed from the counts, by the names of `Evaluation` and `DomainResult`."""
        names = ("images", "accuracy", "interval", "balanced_accuracy", "calibration_error", "mean_confidence")
        return {name: getattr(self, name) for name in names}


def wilson(hits: int, images: int) -> Interval:
    """Return Wilson's 95 % interval of a share."""
    from scipy.stats import binomtest

    low, high = binomtest(hits, images).proportion_ci(0.95, "wilson")
    return float(low), float(high)
