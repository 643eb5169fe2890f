"""What predictions are worth: the protocol's accuracy, and what practitioners ask beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

BINS = 15  # of the calibration error


@dataclass(frozen=True)
class Metrics:
    """Of one split; fractions, not percent. Classes without images count in neither mean."""

    images: int
    loss: float
    accuracy: float
    balanced_accuracy: float
    macro_f1: float
    calibration_error: float
    recall: tuple[float | None, ...]  # of each class; None for one without images

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def measure(logits: Tensor, labels: Tensor) -> Metrics:
    """The metrics of these logits (images, classes)."""
    logits, classes = logits.double(), logits.shape[1]
    confidence, predicted = logits.softmax(1).max(1)
    right = predicted == labels
    there = torch.bincount(labels, minlength=classes).double()
    said = torch.bincount(predicted, minlength=classes).double()
    hits = torch.bincount(labels[right], minlength=classes).double()
    present = there > 0
    recall = hits[present] / there[present]
    f1 = 2 * hits[present] / (there[present] + said[present])
    by_class = (hits / there).tolist()
    return Metrics(
        images=len(labels),
        loss=F.cross_entropy(logits, labels).item(),
        accuracy=right.double().mean().item(),
        balanced_accuracy=recall.mean().item(),
        macro_f1=f1.mean().item(),
        calibration_error=calibration_error(confidence, right),
        recall=tuple(value if exists else None for value, exists in zip(by_class, present.tolist(), strict=True)),
    )


def calibration_error(confidence: Tensor, right: Tensor) -> float:
    """sum over bins of share * |accuracy - mean confidence|, in equal-width bins of the confidence."""
    if not confidence.isfinite().all():  # of a network that has diverged
        return math.nan
    bins = (confidence * BINS).long().clamp(max=BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64, device=confidence.device)
    gaps.index_add_(0, bins, right.double() - confidence.double())
    return (gaps.abs().sum() / len(right)).item()


def mean_over(metrics: Mapping[str, Metrics], name: str) -> float:
    """The unweighted mean of a metric over splits; NaN over none."""
    if not metrics:
        return math.nan
    return sum(float(getattr(m, name)) for m in metrics.values()) / len(metrics)
