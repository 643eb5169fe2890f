"""Metrics of predictions: accuracy, balanced accuracy, F1, calibration error, recall."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

BINS = 15  # for the calibration error


@dataclass(frozen=True)
class Metrics:
    """Metrics of one split, as fractions. Means leave out classes without images."""

    images: int
    loss: float  # NaN if an output is not finite
    accuracy: float
    balanced_accuracy: float
    macro_f1: float
    calibration_error: float
    recall: tuple[float | None, ...]  # per class; None for one without images


def measure(logits: Tensor, labels: Tensor) -> Metrics:
    """Return the metrics of these logits (images, classes). An image whose logits are not finite counts as wrong."""
    logits, classes = logits.double(), logits.shape[1]
    finite = logits.isfinite().all(1)
    confidence, predicted = logits.softmax(1).max(1)
    right = (predicted == labels) & finite
    there, guessed, hits = (
        torch.bincount(each, minlength=classes).double() for each in (labels, predicted[finite], labels[right])
    )
    present = there > 0
    recall = hits[present] / there[present]
    f1 = 2 * hits[present] / (there[present] + guessed[present])
    by_class = (hits / there).tolist()
    return Metrics(
        images=len(labels),
        loss=F.cross_entropy(logits, labels).item() if finite.all() else math.nan,
        accuracy=right.double().mean().item(),
        balanced_accuracy=recall.mean().item(),
        macro_f1=f1.mean().item(),
        calibration_error=calibration_error(confidence, right),
        recall=tuple(value if exists else None for value, exists in zip(by_class, present.tolist(), strict=True)),
    )


def calibration_error(confidence: Tensor, right: Tensor) -> float:
    """Return the sum over equal-width bins of the confidence of share * |accuracy - mean confidence|."""
    if not confidence.isfinite().all():  # the network has diverged
        return math.nan
    bins = (confidence * BINS).long().clamp(max=BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64, device=confidence.device)
    gaps.index_add_(0, bins, right.double() - confidence.double())
    return (gaps.abs().sum() / len(right)).item()
