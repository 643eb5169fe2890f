"""Metrics against counting by hand."""

import math

import pytest
import torch

from mecam.training.metrics import calibration_error, measure


def counted(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """The same numbers, one image and one class at a time."""
    shares = logits.double().softmax(1).tolist()
    said = [row.index(max(row)) for row in shares]
    truth = labels.tolist()
    recalls, scores = [], []
    for one in sorted(set(truth)):
        hits = sum(s == t == one for s, t in zip(said, truth, strict=True))
        recalls.append(hits / truth.count(one))
        scores.append(2 * hits / (truth.count(one) + said.count(one)))
    error = 0.0
    for number in range(15):
        inside = [i for i, row in enumerate(shares) if min(int(max(row) * 15), 14) == number]
        if inside:
            accuracy = sum(said[i] == truth[i] for i in inside) / len(inside)
            confidence = sum(max(shares[i]) for i in inside) / len(inside)
            error += len(inside) / len(truth) * abs(accuracy - confidence)
    return {
        "accuracy": sum(s == t for s, t in zip(said, truth, strict=True)) / len(truth),
        "balanced_accuracy": sum(recalls) / len(recalls),
        "macro_f1": sum(scores) / len(scores),
        "calibration_error": error,
        "loss": -sum(math.log(row[t]) for row, t in zip(shares, truth, strict=True)) / len(truth),
    }


def test_metrics_are_what_counting_gives() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (60,), generator=generator)
    logits = torch.randn(60, 6, generator=generator) * 2  # two of the six classes have no images
    logits[torch.arange(40), labels[:40]] += 3
    found = measure(logits, labels)
    for name, expected in counted(logits, labels).items():
        assert getattr(found, name) == pytest.approx(expected, abs=1e-12), name
    assert found.images == 60
    assert found.recall[4:] == (None, None)
    assert all(value is not None for value in found.recall[:4])


def test_calibration_of_the_perfect_and_of_the_overconfident() -> None:
    assert calibration_error(torch.ones(10), torch.ones(10, dtype=torch.bool)) == 0
    assert calibration_error(torch.ones(10), torch.arange(10) < 7) == pytest.approx(0.3)
    assert calibration_error(torch.full((4,), 0.75), torch.tensor([True, True, True, False])) == pytest.approx(0)


def test_images_whose_outputs_are_not_finite_count_as_wrong() -> None:
    logits = torch.eye(3, dtype=torch.float64)[[0, 1, 2, 0]] * 5
    for bad in (torch.nan, torch.inf, -torch.inf):
        logits[3, 1] = bad
        found = measure(logits, torch.tensor([0, 1, 2, 0]))
        assert found.accuracy == 0.75
        assert found.recall == (0.5, 1.0, 1.0)
        assert math.isnan(found.loss)
    found = measure(torch.full((4, 3), torch.nan), torch.tensor([0, 0, 0, 0]))
    assert found.accuracy == 0, "not class 0"
    assert math.isnan(found.calibration_error)
