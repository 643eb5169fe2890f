"""The space in which novelty is measured, against plain NumPy in float64."""

import numpy as np
import pytest
import torch

from mecam.fitting.confidence import Outputs, between, fit_space, whitening

CLASSES = 3


def part(domain: int, *, images: int, features: int, classes: int = CLASSES) -> Outputs:
    generator = torch.Generator().manual_seed(domain)
    labels = torch.arange(images) % classes
    values = torch.randn(images, features, generator=generator).double() + labels[:, None] + 2 * domain
    return Outputs(values, labels, labels)


def test_distances_are_those_of_mahalanobis() -> None:
    parts = [part(domain, images=60, features=5) for domain in range(2)]
    space = fit_space(parts, CLASSES)
    assert space.directions.shape == (5, 5)

    def scaled(x: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        return np.stack([row / np.sqrt((row**2).sum()) for row in x])

    means, residuals = {}, []
    for domain, one in enumerate(parts):
        rows = scaled(one.features.numpy())
        for name in range(CLASSES):
            own = rows[one.labels.numpy() == name]
            means[domain, name] = own.mean(0)
            residuals += [row - own.mean(0) for row in own]
    inverse = np.linalg.inv(sum(np.outer(row, row) for row in residuals) / len(residuals))

    new = part(5, images=12, features=5)
    found = space.distances(space.project(new.features), new.predicted)
    for row, name, distance in zip(scaled(new.features.numpy()), new.predicted.tolist(), found.tolist(), strict=True):
        gaps = [row - means[domain, name] for domain in range(2)]
        assert distance == pytest.approx(min(np.sqrt(gap @ inverse @ gap) for gap in gaps), rel=1e-9)


@pytest.mark.parametrize(("images", "features"), [(200, 12), (40, 64)])
def test_residuals_are_white_along_the_directions_of_largest_variance(images: int, features: int) -> None:
    generator = torch.Generator().manual_seed(0)
    residuals = torch.randn(images, features, generator=generator).double() * torch.linspace(3, 1, features)
    directions = whitening(residuals)
    rank = min(features, images // 5)
    assert directions.shape == (features, rank)
    covariance = residuals.T @ residuals / images
    torch.testing.assert_close(directions.T @ covariance @ directions, torch.eye(rank).double(), atol=1e-9, rtol=0)
    scale = np.linalg.eigvalsh(covariance.numpy())[::-1][:rank]
    lengths = directions.norm(dim=0).flip(0).numpy()  # the inverse root of each variance
    np.testing.assert_allclose(lengths**-2, scale, rtol=1e-9)


def test_a_class_that_a_domain_lacks_has_its_mean() -> None:
    without = part(0, images=40, features=4, classes=2)
    space = fit_space([without, part(1, images=40, features=4)], CLASSES)
    rows = torch.nn.functional.normalize(without.features)
    torch.testing.assert_close(space.means[0, 2], rows.mean(0) @ space.directions)


def test_a_batch_is_novel_between_the_two_groups() -> None:
    assert between([0.5, 1.0], [3.0, 2.0]) == 1.5
    assert between([0.5, 2.5], [3.0, 2.0]) is None
