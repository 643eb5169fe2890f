"""Accuracy, intervals and calibration error against independent computations in double precision."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, t

from mecam.serving.tally import BINS, Tally, wilson
from mecam.splits import mean_interval
from mecam.training.metrics import measure

CLASSES = 5


@pytest.mark.parametrize(("hits", "images"), [(0, 1), (1, 1), (0, 20), (20, 20), (7, 10), (499, 1000), (1, 10**6)])
def test_wilson_is_scipys(hits: int, images: int) -> None:
    expected = binomtest(hits, images).proportion_ci(0.95, method="wilson")
    assert wilson(hits, images) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_the_interval_over_domains_is_students(rng: np.random.Generator) -> None:
    for count in (2, 4, 9):
        values = rng.uniform(0.45, 0.55, count) if count > 2 else np.array([0.5, 0.501])
        expected = t.interval(0.95, count - 1, loc=values.mean(), scale=values.std(ddof=1) / np.sqrt(count))
        assert mean_interval(values.tolist()) == pytest.approx(expected, abs=1e-12)
    assert mean_interval([0.2, 0.9]) == (0.0, 1.0)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def predictions(rng: np.random.Generator, images: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels of unequal classes, one of which has no images."""
    labels = torch.from_numpy(rng.choice(CLASSES - 1, images, p=[0.7, 0.2, 0.07, 0.03]))
    logits = torch.from_numpy(rng.normal(size=(images, CLASSES)))
    logits[torch.arange(images), labels] += 1.5
    return logits, labels


def counted(logits: torch.Tensor, labels: torch.Tensor) -> Tally:
    tally = Tally(CLASSES)
    confidence, predicted = logits.softmax(1).max(1)
    for one in zip(labels.tolist(), predicted.tolist(), confidence.tolist(), strict=True):
        tally.add(*one)
    return tally


def test_counts_give_what_definitions_give(rng: np.random.Generator) -> None:
    logits, labels = predictions(rng)
    tally = counted(logits, labels)
    confidence, predicted = (column.tolist() for column in logits.softmax(1).max(1))
    right = [a == b for a, b in zip(labels.tolist(), predicted, strict=True)]

    recalls = []
    for name in range(CLASSES):
        own = [hit for hit, label in zip(right, labels.tolist(), strict=True) if label == name]
        recalls += [Fraction(sum(own), len(own))] if own else []
    assert tally.balanced_accuracy == pytest.approx(float(sum(recalls) / len(recalls)), abs=1e-14)
    assert tally.accuracy == sum(right) / len(right)

    error = Fraction(0)
    for place in range(BINS):
        edges = Fraction(place, BINS), Fraction(place + 1, BINS)
        own = [n for n, share in enumerate(confidence) if edges[0] <= Fraction(share) < edges[1]]
        if own:
            accuracy = Fraction(sum(right[n] for n in own), len(own))
            mean = sum(Fraction(confidence[n]) for n in own) / len(own)
            error += Fraction(len(own), len(right)) * abs(accuracy - mean)
    assert tally.calibration_error == pytest.approx(float(error), abs=1e-13)
    assert tally.mean_confidence == pytest.approx(float(np.mean(confidence)), abs=1e-13)


def test_training_measures_the_same(rng: np.random.Generator) -> None:
    logits, labels = predictions(rng)
    tally, metrics = counted(logits, labels), measure(logits, labels)
    assert tally.accuracy == pytest.approx(metrics.accuracy, abs=1e-13)
    assert tally.balanced_accuracy == pytest.approx(metrics.balanced_accuracy, abs=1e-13)
    assert tally.calibration_error == pytest.approx(metrics.calibration_error, abs=1e-13)


def test_parts_add_up(rng: np.random.Generator) -> None:
    logits, labels = predictions(rng)
    whole, first = counted(logits, labels), counted(logits[:100], labels[:100])
    first.merge(counted(logits[100:], labels[100:]))
    assert (first.confusion == whole.confusion).all()
    assert first.calibration_error == pytest.approx(whole.calibration_error, abs=1e-13)


def test_a_confidence_of_one_is_in_the_last_bin() -> None:
    tally = Tally(2)
    tally.add(0, 0, 1.0)
    assert (tally.right[-1], tally.calibration_error) == (1, 0)
