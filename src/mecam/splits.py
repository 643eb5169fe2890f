"""Splits of a data set, by domain and part, and the metrics that records store for them."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

SHARES = ("accuracy", "balanced_accuracy", "macro_f1", "calibration_error", "target_accuracy")


class Part(StrEnum):
    """A part of a domain, by its name in records."""

    TRAINING = "in"
    HELD_OUT = "out"


@dataclass(frozen=True)
class Split:
    """One part of one domain."""

    domain: str
    part: Part

    def __str__(self) -> str:
        return f"{self.domain} {self.part}"

    @classmethod
    def parse(cls, name: str) -> Self:
        """Return the split that records store under this name: "photo in" or "photo out"."""
        domain, _, part = name.rpartition(" ")
        return cls(domain, Part(part))


@dataclass(frozen=True)
class Summary:
    """One metric of an evaluation. A value is None where its split was not evaluated or has no images."""

    validation: float | None  # mean over the held-out parts of the source domains
    target: float | None  # on the training part of the target, which tables report
    oracle: float | None  # on the held-out part of the target


def summarize(splits: Mapping[str, Mapping[str, Any]], target: str | None, metric: str = "accuracy") -> Summary:
    """Summarize the `splits` entry of a record or a result; `target` is None if all domains are sources."""
    validation, of_target = [], {}
    for name, metrics in splits.items():
        split = Split.parse(name)
        if split.domain == target:
            of_target[split.part] = number(metrics, metric)
        elif split.part is Part.HELD_OUT:
            validation.append(number(metrics, metric))
    mean = sum(validation) / len(validation) if validation else None
    return Summary(mean, of_target.get(Part.TRAINING), of_target.get(Part.HELD_OUT))


def balanced_accuracy(splits: Mapping[str, Mapping[str, Any]], target: str | None) -> float | None:
    """Return the balanced accuracy on the training part of the target; None where it is not stored."""
    metrics = {} if target is None else splits.get(str(Split(target, Part.TRAINING)), {})
    return number(metrics, "balanced_accuracy") if "balanced_accuracy" in metrics else None


def number(metrics: Mapping[str, Any], metric: str) -> float:
    """Return a metric that was read from a file. Raise ValueError unless it is a number, and a share if it should be.

    A loss may be NaN or infinite.
    """
    value = metrics[metric]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{metric}={value!r} is not a number")
    if metric in SHARES:
        return share(metric, value)
    return math.copysign(math.inf, value) if abs(value) > sys.float_info.max else float(value)


def share(name: str, value: Any) -> float:
    """Return a value from 0 to 1 that was read from a file. Raise ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ValueError(f"{name}={value!r} must be a number in [0, 1]")
    return float(value)


def require_valid(splits: Mapping[str, Any]) -> None:
    """Raise ValueError for metrics of a result that no evaluation writes."""
    for name, metrics in splits.items():
        Split.parse(name)
        for metric in metrics:
            if metric in (*SHARES, "loss"):
                number(metrics, metric)
        count = metrics.get("images", 0)
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < 1 << 53:
            raise ValueError(f"images={count!r} of {name!r} is not a number of images")
        for value in metrics.get("recall", ()):
            if value is not None:
                share("recall", value)


def is_about(accuracy: float, trivial: float) -> bool:
    """Return whether an accuracy is about that of a trivial answer: less than a tenth of its errors are avoided."""
    return accuracy < trivial + (1 - trivial) / 10


def is_majority(accuracy: float, share: float, classes: int) -> bool:
    """Return whether an accuracy is about the share of the most frequent class, where classes are unbalanced."""
    return share > 1.2 / classes and is_about(accuracy, share)


def half_interval(values: Sequence[float]) -> float:
    """Return half the width of the 95 % confidence interval of the mean (Student's t)."""
    from scipy.special import stdtrit  # scipy.stats is slow to import

    return float(stdtrit(len(values) - 1, 0.975)) * statistics.stdev(values) / math.sqrt(len(values))


def mean_interval(accuracies: Sequence[float], most: float = 1.0) -> tuple[float, float]:
    """Return the 95 % interval of the mean of accuracies, of which none is above `most`."""
    mean, half = statistics.fmean(accuracies), half_interval(accuracies)
    return max(0.0, mean - half), min(most, mean + half)


def percent(share: float | None) -> float | None:
    """Return a share in percent; None stays None."""
    return None if share is None else 100 * share
