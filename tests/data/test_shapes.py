import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mecam.data._outlines import OUTLINES
from mecam.data.domains import DataError, DomainSet, domain_index, source_domains
from mecam.data.shapes import ShapesSet, shapes

FINGERPRINT = "40d5ecfed6f667becdbe8b2d0c5586503cc18f8293b41cde2c016a4c8ba9f7ed"


@pytest.fixture(scope="module")
def data() -> ShapesSet:
    return shapes()


def pixels(data: ShapesSet, domain: str) -> NDArray[np.float64]:
    """(n, 32, 32, 3) in [0, 1]."""
    index = domain_index(data, domain)
    return data.images(index, range(len(data.labels(index)))).numpy().transpose(0, 2, 3, 1) / 255


def test_the_bytes_are_the_same_everywhere(data: ShapesSet) -> None:
    assert data.fingerprint == FINGERPRINT


def test_the_seed_decides(data: ShapesSet) -> None:
    small = shapes(seed=1, per_class=2)
    assert small.fingerprint == shapes(seed=1, per_class=2).fingerprint
    assert small.fingerprint != shapes(seed=2, per_class=2).fingerprint
    assert not np.array_equal(small.pixels[0], data.pixels[0][:14])


def test_more_images_leave_the_first_as_they_were(data: ShapesSet) -> None:
    small = shapes(per_class=3)
    for domain in range(4):
        first = [80 * label + number for label in range(7) for number in range(3)]
        assert torch.equal(small.images(domain, range(21)), data.images(domain, first))


def test_it_is_a_domain_set(data: ShapesSet) -> None:
    assert isinstance(data, DomainSet)
    assert (data.name, data.size) == ("shapes", (32, 32))
    assert data.domains == ("art", "cartoon", "photo", "sketch")
    assert data.classes == ("circle", "cross", "heart", "moon", "square", "star", "triangle")
    for domain in range(4):
        assert np.bincount(data.labels(domain)).tolist() == [80] * 7
        assert (data.labels(domain).dtype, data.aspects(domain).dtype) == (np.int64, np.float32)
        assert data.aspects(domain).tolist() == [1.0] * 560


def test_images_come_as_asked(data: ShapesSet) -> None:
    batch = data.images(2, np.array([5, 3, 5]))
    assert (batch.dtype, batch.shape) == (torch.uint8, (3, 3, 32, 32))
    assert torch.equal(batch[0], batch[2])
    assert not torch.equal(batch[0], batch[1])
    assert torch.equal(batch[1], data.images(2, [3])[0])
    batch.zero_()
    assert data.images(2, [5]).any()  # a copy: the set itself is untouched
    assert data.images(0, []).shape == (0, 3, 32, 32)


def test_names_follow_labels(data: ShapesSet) -> None:
    assert data.sample_name(2, 0) == "photo/circle/0000.png"
    assert data.sample_name(3, 80 * 5 + 7) == "sketch/star/0007.png"
    with pytest.raises(IndexError):
        data.sample_name(0, 560)


def test_no_image_occurs_twice(data: ShapesSet) -> None:
    assert len({image.tobytes() for domain in data.pixels for image in domain}) == 2240


def test_sketches_are_dark_lines_on_white(data: ShapesSet) -> None:
    image = pixels(data, "sketch")
    assert np.array_equal(image[..., 0], image[..., 1])
    assert np.array_equal(image[..., 1], image[..., 2])
    white = (image[..., 0] > 0.85).mean(axis=(1, 2))
    assert white.min() > 0.6
    assert white.max() < 0.97  # something is drawn on each
    assert (image[data.labels(3) == 0][:, 14:18, 14:18] > 0.85).mean() > 0.98  # circles are not filled


def test_cartoons_are_flat_bright_and_outlined(data: ShapesSet) -> None:
    image = pixels(data, "cartoon")
    corners = image[:, [0, 0, -1, -1], [0, -1, 0, -1]]
    plain = (corners == corners[:, :1]).all(axis=(1, 2))
    assert plain.mean() > 0.8
    circles = image[data.labels(1) == 0]
    centre = circles[:, 15, 15]
    assert (centre.max(axis=1) - centre.min(axis=1)).min() > 0.5  # saturated
    dark = (image.max(axis=-1) < 0.2).mean(axis=(1, 2))
    assert dark.min() > 0.05
    assert dark.max() < 0.4


def test_photos_have_a_textured_ground_and_paintings_strong_colours(data: ShapesSet) -> None:
    def texture(image: NDArray[np.float64]) -> float:
        """Mean step between neighbours in the outer rows."""
        return float(np.abs(np.diff(image[:, [0, 1, -2, -1]], axis=2)).mean())

    def saturation(image: NDArray[np.float64]) -> float:
        return float((image.max(axis=-1) - image.min(axis=-1)).mean())

    assert texture(pixels(data, "photo")) > 0.03
    assert texture(pixels(data, "art")) > 0.03
    assert texture(pixels(data, "cartoon")) < 0.01
    assert saturation(pixels(data, "art")) > 0.3 > saturation(pixels(data, "photo")) > 0.1


def lens(first: float, second: float, apart: float) -> float:
    """The area that two discs have in common: two circular segments."""
    area = 0.0
    for radius, other in ((first, second), (second, first)):
        chord = (apart**2 + radius**2 - other**2) / (2 * apart)
        area += radius**2 * np.arccos(chord / radius) - chord * np.sqrt(radius**2 - chord**2)
    return area


POINTS = np.random.default_rng(0).uniform(-1.3, 1.3, (2, 200_000))


@pytest.mark.parametrize(
    ("shape", "area"),
    [
        ("circle", np.pi * 0.85**2),
        ("square", 1.5**2),
        ("cross", 1.8 * 0.56 * 2 - 0.56**2),
        ("triangle", 0.9 * 1.65),
        ("star", 5 * 0.42 * np.sin(np.pi / 5)),
        ("moon", np.pi * 0.95**2 - lens(0.95, 0.78, 0.45)),
    ],
)
def test_areas_of_the_outlines(shape: str, area: float) -> None:
    inside = OUTLINES[shape](*POINTS) < 0
    assert inside.mean() * 2.6**2 == pytest.approx(area, rel=0.02)


def test_a_heart_is_symmetric_with_a_notch_and_a_tip() -> None:
    heart, (x, y) = OUTLINES["heart"], POINTS
    assert np.allclose(heart(x, y), heart(-x, y))
    assert (heart(np.array([0.0, 0.43, 0.0]), np.array([-0.6, -0.6, 0.85])) < 0).tolist() == [False, True, True]
    assert heart(np.array([0.0]), np.array([0.9])) == pytest.approx(0)


@pytest.mark.parametrize("shape", OUTLINES)
def test_outlines_are_distances_outside(shape: str) -> None:
    """|grad| is at most 1 everywhere (no seam, no fold), and 1 almost everywhere."""
    step, outline = 1e-6, OUTLINES[shape]
    x, y = POINTS[:, :20_000]
    here = outline(x, y)
    gradient = np.hypot((outline(x + step, y) - here) / step, (outline(x, y + step) - here) / step)
    assert gradient.max() < 1.001
    assert np.isclose(gradient, 1, atol=1e-3).mean() > 0.99


def test_distances_in_closed_form() -> None:
    x, y = np.array([0.0, 2.0, 1.75, 0.0]), np.array([0.0, 0.0, 1.75, 0.7])
    assert OUTLINES["square"](x, y) == pytest.approx([-0.75, 1.25, 2**0.5, -0.05])
    assert OUTLINES["circle"](x, y) == pytest.approx([-0.85, 1.15, 1.75 * 2**0.5 - 0.85, -0.15])


def test_domains_by_name(data: ShapesSet) -> None:
    assert domain_index(data, "photo") == 2
    assert source_domains(data, "photo") == (0, 1, 3)
    assert source_domains(data, None) == (0, 1, 2, 3)
    with pytest.raises(DataError, match="shapes has no domain 'phot'; did you mean photo"):
        source_domains(data, "phot")
    with pytest.raises(DataError, match="its domains are art, cartoon, photo, sketch"):
        domain_index(data, "xyz")
