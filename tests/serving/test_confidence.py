"""How predictions in a new domain are judged, against independent computations in float64."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from mecam.runs import RunError
from mecam.serving.confidence import BATCH, FEWEST, Confidence, Space, Together

FEATURES, RANK, DOMAINS, CLASSES = 7, 3, 2, 4


@pytest.fixture
def space() -> Space:
    torch.manual_seed(0)
    return Space(torch.randn(FEATURES, RANK).double(), torch.randn(DOMAINS, CLASSES, RANK).double())


def confidence(
    space: Space, probabilities: torch.Tensor, right: torch.Tensor, shifted: float | None = 0.5
) -> Confidence:
    return Confidence(space, ("clinic", "lab"), 2.0, shifted, probabilities, right)


def test_an_image_is_as_novel_as_it_is_far_from_its_class_in_the_nearest_domain(space: Space) -> None:
    features, predicted = torch.randn(20, FEATURES).double(), torch.arange(20) % CLASSES
    found = confidence(space, torch.ones(1), torch.ones(1)).novelty(space.project(features), predicted)
    for one, name, novelty in zip(features.numpy(), predicted.tolist(), found.tolist(), strict=True):
        projected = one / np.sqrt((one**2).sum()) @ space.directions.numpy()
        distances = [np.sqrt(((projected - mean[name]) ** 2).sum()) for mean in space.means.numpy()]
        assert novelty == pytest.approx(min(distances) / 2, rel=1e-12)


def test_a_batch_is_as_novel_as_its_mean_residual_is_long(space: Space) -> None:
    projected, predicted = torch.randn(30, RANK).double() + 2, torch.arange(30) % 3  # no image of the last class
    together = Together(confidence(space, torch.ones(1), torch.ones(1)))
    for part in (slice(0, 20), slice(20, 30)):
        together.add(projected[part], predicted[part])
    squares = []
    for domain in range(DOMAINS):
        residuals = [x - space.means[domain, c] for x, c in zip(projected, predicted, strict=True)]
        squares.append(float((sum(residuals) / 30).square().sum()) - RANK / 30)
    assert together.novelty == pytest.approx(max(0, min(squares)) ** 0.5 / 0.5, rel=1e-12)
    assert together.nearest == ("clinic", "lab")[int(np.argmin(squares))]


def test_the_shares_of_classes_do_not_make_a_batch_novel(space: Space) -> None:
    predicted = torch.zeros(4000, dtype=torch.int64)  # one class
    like, unlike = (Together(confidence(space, torch.ones(1), torch.ones(1))) for _ in range(2))
    seen = space.means[1, predicted] + torch.randn(4000, RANK).double()
    like.add(seen, predicted)
    unlike.add(seen + 100, predicted)
    assert like.verdict() == (
        f"these 4,000 images look like lab, a domain of training (novelty of the batch: {like.novelty:.2f})"
    )
    assert str(unlike.verdict()).startswith("these 4,000 images look unlike all 2 domains of training; the nearest is ")


def test_a_small_batch_has_no_novelty(space: Space) -> None:
    for images, shifted in ((BATCH - 1, 0.5), (BATCH, None)):
        together = Together(confidence(space, torch.ones(1), torch.ones(1), shifted))
        together.add(torch.randn(images, RANK), torch.zeros(images, dtype=torch.int64))
        assert together.novelty is None
        assert together.verdict() is None


@pytest.mark.parametrize("precision", [0.6, 0.75, 0.9])
def test_the_threshold_is_the_least_with_the_wanted_precision(space: Space, precision: float) -> None:
    generator = torch.Generator().manual_seed(1)
    probabilities = torch.rand(500, generator=generator).mul(50).ceil() / 50  # many are equal
    right = torch.rand(500, generator=generator) < probabilities
    judge = confidence(space, probabilities, right)
    fitting = []
    for threshold in sorted(set(probabilities.tolist())):
        own = [hit for one, hit in zip(probabilities.tolist(), right.tolist(), strict=True) if one >= threshold]
        if len(own) >= FEWEST and sum(own) / len(own) >= precision:
            fitting.append((threshold, len(own) / 500))
    assert judge.threshold(precision) == fitting[0][0]
    assert judge.answered(fitting[0][0]) == pytest.approx(fitting[0][1])
    assert all(low < high for (low, _), (high, _) in pairwise(fitting))


def test_a_precision_that_cannot_be_had_is_an_error(space: Space) -> None:
    judge = confidence(space, torch.linspace(0, 1, 100), torch.arange(100) % 2 == 0)
    with pytest.raises(
        RunError, match=r"a precision of 0\.9 is not reached on .* the highest is 0\.5\d+\. Ask for less"
    ):
        judge.threshold(0.9)
    with pytest.raises(
        ValueError, match=r"a precision of 95 is not allowed; it must be between 0 and 1, such as 0\.95"
    ):
        judge.threshold(95)
    few = confidence(space, torch.ones(FEWEST - 1), torch.ones(FEWEST - 1, dtype=torch.bool))
    with pytest.raises(RunError, match="not reached"):
        few.threshold(0.5)
