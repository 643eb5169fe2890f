"""RandAugment's operations against torchvision's, and how they are drawn."""

import math
from collections.abc import Callable

import pytest
import torch
import torchvision.transforms.v2 as transforms
import torchvision.transforms.v2.functional as reference
from torch import Tensor

from mecam.data.augment import Augmentation
from mecam.data.randaugment import OPERATIONS, RandAugment, operate
from mecam.preprocessing import Preprocessing
from tests.data.test_augment import pictures

SIZE = 40


def affine(
    image: Tensor, *, angle: float = 0.0, shift: tuple[int, int] = (0, 0), shear: tuple[float, float] = (0, 0)
) -> Tensor:
    return reference.affine(image, angle, list(shift), 1.0, list(shear), transforms.InterpolationMode.BILINEAR)


def degrees(slope: float) -> float:
    return math.degrees(math.atan(slope))


EXPECTED: dict[str, Callable[[Tensor, float], Tensor]] = {
    "identity": lambda image, _: image,
    "brightness": lambda image, sign: reference.adjust_brightness(image, 1 + 0.27 * sign),
    "contrast": lambda image, sign: reference.adjust_contrast(image, 1 + 0.27 * sign),
    "saturation": lambda image, sign: reference.adjust_saturation(image, 1 + 0.27 * sign),
    "sharpness": lambda image, sign: reference.adjust_sharpness(image, 1 + 0.27 * sign),
    "posterize": lambda image, _: reference.posterize(image, 7),
    "solarize": lambda image, _: reference.solarize(image, 0.7),
    "autocontrast": lambda image, _: reference.autocontrast(image),
    "equalize": lambda image, _: reference.equalize(image),
    "rotate": lambda image, sign: affine(image, angle=9.0 * sign),
    "shear_x": lambda image, sign: affine(image, shear=(degrees(0.09 * sign), 0.0)),
    "shear_y": lambda image, sign: affine(image, shear=(0.0, degrees(0.09 * sign))),
}


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("name", list(EXPECTED))
def test_operations_are_torchvisions(name: str, sign: float) -> None:
    images = pictures(8, SIZE, SIZE) / 255
    found = operate(images, torch.full((8,), OPERATIONS.index(name)), torch.full((8,), sign))
    expected = torch.stack([EXPECTED[name](image, sign) for image in images])
    torch.testing.assert_close(found, expected, atol=3e-4, rtol=0)
    assert name == "identity" or not torch.equal(found, images)


@pytest.mark.parametrize("name", ["translate_x", "translate_y"])
def test_translations_move_by_a_share_of_the_side(name: str) -> None:
    image = torch.zeros(1, 3, 331, 331)
    image[:, :, 165, 165] = 1
    moved = operate(image, torch.tensor([OPERATIONS.index(name)]), torch.ones(1))
    row, column = (int(index) for index in (moved[0, 0] == moved[0, 0].max()).nonzero()[0])
    assert sorted([165 - row, 165 - column]) == [0, 45]  # 9/30 of 150 of 331 pixels


def test_each_image_has_its_own_operations() -> None:
    images = pictures(len(OPERATIONS), SIZE, SIZE) / 255
    kinds, signs = torch.arange(len(OPERATIONS)), torch.ones(len(OPERATIONS))
    together = operate(images, kinds, signs)
    assert together.min() >= 0
    assert together.max() <= 1
    for place in range(len(OPERATIONS)):
        alone = operate(images[place : place + 1], kinds[place : place + 1], signs[place : place + 1])
        torch.testing.assert_close(together[place : place + 1], alone)


def test_every_operation_is_as_likely_and_a_seed_decides() -> None:
    images = pictures(7000, 4, 4)
    transform = RandAugment(Preprocessing(4))
    draws, again = (transform.draw(images, generator=torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(draws.operations, again.operations)
    counts = torch.bincount(draws.operations.flatten(), minlength=len(OPERATIONS))
    assert ((counts - 1000).abs() < 150).all(), "five standard deviations"
    assert abs(draws.signs.mean().item()) < 0.05
    crops = Augmentation(Preprocessing(4)).draw(images, generator=torch.Generator().manual_seed(0))
    assert torch.equal(crops.box, draws.box)
    assert transform(images[:8]).isfinite().all()
    assert len(draws[2:5].operations) == 3
