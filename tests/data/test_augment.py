"""Each operation against torchvision's on floating-point images, the draws against torchvision's distributions."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms.v2 as transforms
import torchvision.transforms.v2.functional as reference
from PIL import Image
from torch import Tensor

from mecam.data import augment
from mecam.data.augment import BRIGHTNESS, CONTRAST, HUE, SATURATION, Augmentation, Draws, evaluate_transform
from mecam.data.store import fit
from mecam.preprocessing import Interpolation, Preprocessing, Resize
from mecam.training.build import AUGMENTATIONS

GRAY_TOLERANCE = 1.5e-4  # Pillow's grey is .299 R + ..., torchvision's .2989 R + ...: at most 1e-4 apart
OPERATIONS = {
    BRIGHTNESS: reference.adjust_brightness,
    CONTRAST: reference.adjust_contrast,
    SATURATION: reference.adjust_saturation,
    HUE: reference.adjust_hue,
}


def pictures(count: int, height: int, width: int, seed: int = 0) -> Tensor:
    """Noise, smooth colours, grey, and the corners of the colour cube, whose hue has ties."""
    random = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8, generator=random)
    images[1::4] = torch.linspace(0, 255, width).to(torch.uint8) // torch.tensor([[[1]], [[2]], [[3]]])
    images[2::4] = images[2::4, :1]
    images[3::4] = 255 * (images[3::4] > 127)
    return images


def neutral(images: Tensor) -> Draws:
    """Draws that leave every image as it is."""
    count, _, height, width = images.shape
    return Draws(
        box=torch.tensor([0.0, 0.0, height, width]).repeat(count, 1),
        flip=torch.zeros(count, dtype=torch.bool),
        order=torch.arange(4).repeat(count, 1),
        factors=torch.tensor([1.0, 1.0, 1.0, 0.0]).repeat(count, 1),
        gray=torch.zeros(count, dtype=torch.bool),
        vertical=torch.zeros(count, dtype=torch.bool),
    )


def plain(size: int, interpolation: Interpolation = "bilinear") -> Preprocessing:
    """No normalization."""
    return Preprocessing(size, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), interpolation)


def one_by_one(images: Tensor, operation: Callable[[Tensor, int], Tensor]) -> Tensor:
    return torch.stack([operation(image, index) for index, image in enumerate(images / 255)])


@pytest.mark.parametrize(("stored", "size"), [((227, 227), 224), ((320, 320), 224), ((90, 70), 32), ((20, 24), 64)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_crop_is_torchvisions_antialiased_resized_crop(
    stored: tuple[int, int], size: int, interpolation: Interpolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = pictures(8, *stored)
    monkeypatch.setattr(augment, "AREA", (0.1, 1.0))
    transform = Augmentation(plain(size, interpolation))
    drawn = transform.draw(images, generator=torch.Generator().manual_seed(1))
    draws = replace(neutral(images), box=drawn.box, flip=drawn.flip)
    assert 0 < draws.flip.sum() < 8

    def crop(image: Tensor, index: int) -> Tensor:
        top, left, height, width = map(int, draws.box[index])
        mode = transforms.InterpolationMode(interpolation)
        out = reference.resized_crop(image, top, left, height, width, [size, size], mode, antialias=True).clamp(0, 1)
        return reference.horizontal_flip(out) if draws.flip[index] else out

    # both place their samples in float32: coordinates up to the stored size are that much off, and so are the weights
    bound = 4 * torch.finfo(torch.float32).eps * max(stored)
    torch.testing.assert_close(transform.apply(images, draws), one_by_one(images, crop), atol=bound, rtol=0)


def test_crop_is_pillows_up_to_its_rounding() -> None:
    images = pictures(4, 60, 80)
    box = torch.tensor([[3.0, 5.0, 50.0, 61.0], [0, 0, 60, 80], [10, 10, 20, 20], [59, 79, 1, 1]])
    ours = Augmentation(plain(32)).apply(images, replace(neutral(images), box=box)) * 255
    for image, (top, left, height, width), out in zip(images, box.int().tolist(), ours, strict=True):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy()).crop((left, top, left + width, top + height))
        theirs = np.asarray(picture.resize((32, 32), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
        assert np.abs(out.numpy() - theirs).max() <= 1.01  # Pillow rounds after each of its two passes


def test_nothing_drawn_changes_nothing() -> None:
    images = pictures(8, 40, 40)
    out = Augmentation(plain(40)).apply(images, neutral(images))
    torch.testing.assert_close(out, images / 255, atol=1e-6, rtol=0)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_colour_operation_is_torchvisions(operation: int) -> None:
    images = pictures(16, 24, 24)
    draws = neutral(images)
    draws.factors[:, operation] = torch.linspace(-0.5, 0.5, 16) if operation == HUE else torch.linspace(0, 2, 16)
    expected = one_by_one(images, lambda image, i: OPERATIONS[operation](image, float(draws.factors[i, operation])))
    tolerance = GRAY_TOLERANCE if operation in (CONTRAST, SATURATION) else 2e-6
    out = Augmentation(plain(24)).apply(images, draws)
    torch.testing.assert_close(out, expected, atol=tolerance, rtol=0)


def test_grayscale_is_torchvisions_and_white_stays_white() -> None:
    images = pictures(8, 24, 24)
    images[0] = 255
    draws = replace(neutral(images), gray=torch.arange(8) % 2 == 0)
    out = Augmentation(plain(24)).apply(images, draws)
    grey = one_by_one(images, lambda image, i: reference.rgb_to_grayscale(image, 3) if i % 2 == 0 else image)
    torch.testing.assert_close(out, grey, atol=GRAY_TOLERANCE, rtol=0)
    torch.testing.assert_close(out[0], torch.ones(3, 24, 24), atol=1e-6, rtol=0)


def test_every_image_undergoes_the_operations_in_its_own_order() -> None:
    orders = torch.tensor(list(itertools.permutations(range(4))))
    images = pictures(4, 16, 16).repeat(6, 1, 1, 1)
    factors = torch.tensor([1.3, 0.7, 1.3, 0.25]).repeat(24, 1)
    expected = one_by_one(images, lambda image, i: in_order(image, orders[i].tolist(), factors[i].tolist()))
    draws = replace(neutral(images), order=orders, factors=factors)
    out = Augmentation(plain(16)).apply(images, draws)
    torch.testing.assert_close(out, expected, atol=4 * GRAY_TOLERANCE, rtol=0)
    mistaken = one_by_one(images, lambda image, i: in_order(image, orders[i].tolist()[::-1], factors[i].tolist()))
    assert (expected - mistaken).abs().amax(dim=(1, 2, 3)).min() > 0.01, "the order makes no difference in this test"


def in_order(image: Tensor, order: list[int], factors: list[float]) -> Tensor:
    for operation in order:
        image = OPERATIONS[operation](image, factors[operation])
    return image


def test_the_whole_transform_is_the_composition(monkeypatch: pytest.MonkeyPatch) -> None:
    images = pictures(12, 50, 60)
    monkeypatch.setattr(augment, "GRAYSCALE", 0.5)
    transform = Augmentation(Preprocessing(32))
    draws = transform.draw(images, generator=torch.Generator().manual_seed(3))

    def compose(image: Tensor, i: int) -> Tensor:
        top, left, height, width = map(int, draws.box[i])
        image = reference.resized_crop(image, top, left, height, width, [32, 32], antialias=True)
        image = reference.horizontal_flip(image) if draws.flip[i] else image
        image = in_order(image, draws.order[i].tolist(), draws.factors[i].tolist())
        image = reference.rgb_to_grayscale(image, 3) if draws.gray[i] else image
        return reference.normalize(image, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])

    out = transform.apply(images, draws)
    torch.testing.assert_close(out, one_by_one(images, compose), atol=5 * GRAY_TOLERANCE / 0.224, rtol=0)


@pytest.mark.parametrize(("height", "width"), [(227, 227), (200, 300), (120, 300)])
def test_boxes_are_distributed_as_torchvisions(height: int, width: int) -> None:
    """The last shape needs the central fallback at times."""
    count = 2000
    images = torch.zeros(1, 3, height, width, dtype=torch.uint8).expand(count, -1, -1, -1)
    ours = Augmentation().draw(images, generator=torch.Generator().manual_seed(0)).box
    torch.manual_seed(0)
    theirs = transforms.RandomResizedCrop(224, scale=(0.7, 1.0)).make_params
    expected = [theirs([images[0]]) for _ in range(count)]
    for column, name in enumerate(("top", "left", "height", "width")):
        distance = kolmogorov_smirnov(ours[:, column].numpy(), np.array([params[name] for params in expected]))
        assert distance < 2.5 * np.sqrt(2 / count), name  # exceeded by chance once in 100,000


def kolmogorov_smirnov(first: np.ndarray, second: np.ndarray) -> float:
    points = np.concatenate([first, second])
    below = [np.searchsorted(np.sort(sample), points, side="right") / len(sample) for sample in (first, second)]
    return float(np.abs(below[0] - below[1]).max())


@pytest.mark.parametrize(("ratio", "narrowest", "widest"), [(0.8, 0.75, 0.8 / 0.7), (1.5, 0.7 * 1.5, 4 / 3)])
def test_boxes_are_drawn_in_the_original_images_shape(ratio: float, narrowest: float, widest: float) -> None:
    """Of 70 % of the area, a box wider than 1/0.7 of the image's own shape does not fit into it, nor a narrower one."""
    images = torch.zeros(500, 3, 320, 320, dtype=torch.uint8)
    box = Augmentation().draw(images, torch.full((500,), ratio), generator=torch.Generator().manual_seed(0)).box
    aspect, area = box[:, 3] * ratio / box[:, 2], box[:, 2] * box[:, 3] / 320**2
    slack = 0.01  # two sides rounded to a pixel of 320
    assert narrowest * (1 - slack) < aspect.min() < narrowest * 1.05
    assert widest * 0.95 < aspect.max() < widest * (1 + slack)
    assert 0.7 * (1 - slack) < area.min() < 0.72
    assert area.max() <= 1


def test_an_elongated_image_gives_its_largest_central_box() -> None:
    images = torch.zeros(2, 3, 320, 320, dtype=torch.uint8)
    box = Augmentation().draw(images, torch.tensor([3.0, 1 / 3])).box
    assert box.tolist() == [[0, 89, 320, 142], [89, 0, 142, 320]]  # 320 * 4/3 / 3 = 142


def test_draws_have_the_asked_frequencies_and_ranges() -> None:
    count = 24_000
    images = torch.zeros(1, 3, 8, 8, dtype=torch.uint8).expand(count, -1, -1, -1)
    draws = Augmentation().draw(images, generator=torch.Generator().manual_seed(0))
    assert abs(float(draws.flip.float().mean()) - 0.5) < 0.015
    assert abs(float(draws.gray.float().mean()) - 0.1) < 0.01
    for operation, (low, high) in enumerate([(0.7, 1.3)] * 3 + [(-0.3, 0.3)]):
        uniform = np.linspace(low, high, count)
        assert kolmogorov_smirnov(draws.factors[:, operation].numpy(), uniform) < 2.5 * np.sqrt(1 / count)
    orders, counts = np.unique(draws.order.numpy(), axis=0, return_counts=True)
    assert len(orders) == 24
    assert ((counts - 1000) ** 2 / 1000).sum() < 60  # chi-squared with 23 degrees of freedom: once in 30,000


def test_a_seed_decides_everything_and_none_means_the_default_generator() -> None:
    images = pictures(6, 30, 30)
    transform = Augmentation(Preprocessing(16))
    first, second = (transform(images, generator=torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(transform(images), first)
    assert not torch.equal(transform(images), first)


def test_an_image_is_transformed_alike_in_any_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    images = pictures(10, 30, 40)
    transform = Augmentation(Preprocessing(20))
    draws = transform.draw(images, generator=torch.Generator().manual_seed(0))
    whole = transform.apply(images, draws)
    monkeypatch.setattr(augment, "PIECE", 3 * 3 * 20 * 20)
    torch.testing.assert_close(transform.apply(images, draws), whole, atol=1e-6, rtol=0)
    torch.testing.assert_close(transform.apply(images[4:6], draws[4:6]), whole[4:6], atol=1e-6, rtol=0)


def test_neither_autocast_nor_memory_layout_nor_default_type_matters() -> None:
    images = pictures(6, 30, 30)
    before = images.clone()
    transform = Augmentation(Preprocessing(16))
    draws = transform.draw(images)
    plain = transform.apply(images, draws)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(transform.apply(images, draws), plain)
        assert torch.equal(evaluate_transform(images, Preprocessing(16)), evaluate_transform(before, Preprocessing(16)))
    assert torch.equal(transform.apply(images.to(memory_format=torch.channels_last), draws), plain)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(transform.apply(images, draws), plain)
        assert transform.draw(images).box.dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(images, before)


@pytest.mark.parametrize(("stored", "size"), [((227, 227), 224), ((50, 70), 32), ((32, 32), 32)])
def test_evaluation_resizes_and_normalises(stored: tuple[int, int], size: int) -> None:
    images = pictures(5, *stored)

    def resize(image: Tensor, _: int) -> Tensor:
        image = reference.resize(image, [size, size], antialias=True)
        return reference.normalize(image, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])

    torch.testing.assert_close(
        evaluate_transform(images, Preprocessing(size)), one_by_one(images, resize), atol=1.5e-4, rtol=0
    )


@pytest.mark.parametrize("resize", ["squash", "crop", "letterbox"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("stored", [(64, 96), (98, 64), (64, 64)])
def test_evaluation_and_prediction_resize_alike(
    resize: Resize, interpolation: Interpolation, stored: tuple[int, int]
) -> None:
    coarse = 64 + pictures(3, 9, 9).float() / 2  # no value to clip between rows and columns
    images = torch.nn.functional.interpolate(coarse, stored, mode="bilinear").to(torch.uint8)
    found = evaluate_transform(images, replace(plain(48, interpolation), resize=resize))
    for image, own in zip(images, found, strict=True):
        expected = torch.from_numpy(np.array(fit(image.permute(1, 2, 0).numpy(), (48, 48), interpolation, resize)))
        assert (own.permute(1, 2, 0) * 255 - expected).abs().max() < 1.3, "Pillow rounds twice to 8 bits"


@pytest.mark.parametrize(("resize", "rows"), [("crop", slice(0, 8)), ("letterbox", slice(2, 6))])
def test_images_stored_without_their_aspect_get_it_back(resize: Resize, rows: slice) -> None:
    """A picture twice as wide as high, in four vertical stripes; as a store has it."""
    stored = torch.tensor([10, 80, 160, 240], dtype=torch.uint8).repeat_interleave(8).expand(1, 3, 32, 32).contiguous()
    aspects = torch.tensor([2.0])
    (image,) = evaluate_transform(stored, replace(plain(8), resize=resize), aspects) * 255
    stripes = (
        torch.tensor([80.0] * 4 + [160.0] * 4)
        if resize == "crop"
        else torch.tensor([10.0, 80, 160, 240]).repeat_interleave(2)
    )
    torch.testing.assert_close(image[:, rows], stripes.expand_as(image[:, rows]), atol=12, rtol=0)
    assert image.sum(dim=(0, 2)).count_nonzero() == rows.stop - rows.start
    assert torch.equal(evaluate_transform(stored, plain(8), aspects), evaluate_transform(stored, plain(8))), (
        "squash needs no aspects"
    )


def test_without_crops_images_are_as_in_evaluation() -> None:
    images, aspects = pictures(4, 40, 60), torch.tensor([0.5, 1.0, 1.5, 3.0])
    for resize in ("squash", "crop", "letterbox"):
        own = replace(plain(24), resize=resize)
        expected = evaluate_transform(images, own, aspects)
        assert expected.isfinite().all()
        torch.testing.assert_close(AUGMENTATIONS["none"](own)(images, aspects), expected, atol=1e-6, rtol=0)


def test_vertical_flips_turn_half_of_the_images_upside_down() -> None:
    images = pictures(64, 16, 16)
    upright, turned = Augmentation(plain(8)), AUGMENTATIONS["flips"](plain(8))
    draws = turned.draw(images, generator=torch.Generator().manual_seed(0))
    assert 20 < draws.vertical.sum() < 44
    same = upright.draw(images, generator=torch.Generator().manual_seed(0))
    assert torch.equal(same.box, draws.box), "the other draws are the protocol's"
    expected = torch.where(
        draws.vertical[:, None, None, None], upright.apply(images, same).flip(2), upright.apply(images, same)
    )
    torch.testing.assert_close(turned.apply(images, draws), expected)


def test_no_images_give_no_images() -> None:
    images = torch.zeros(0, 3, 30, 30, dtype=torch.uint8)
    assert Augmentation(Preprocessing(16))(images).shape == (0, 3, 16, 16)
    assert evaluate_transform(images, Preprocessing(16)).shape == (0, 3, 16, 16)


@pytest.mark.parametrize(
    "options", [{"size": 0}, {"std": (1.0, 0.0, 1.0)}, {"interpolation": "nearest"}, {"resize": "fit"}]
)
def test_impossible_preprocessing_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Preprocessing(**options)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
class TestOnCuda:
    @pytest.mark.parametrize(("height", "width", "size"), [(227, 227, 224), (300, 90, 64), (40, 40, 64), (64, 64, 64)])
    @pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
    def test_it_agrees_with_the_cpu(self, height: int, width: int, size: int, interpolation: Interpolation) -> None:
        images = pictures(16, height, width)
        preprocessing = Preprocessing(size, interpolation=interpolation)
        transform = Augmentation(preprocessing)
        draws = transform.draw(images)
        there = Draws(*(value.cuda() for value in vars(draws).values()))
        out = transform.apply(images.cuda(), there).cpu()
        torch.testing.assert_close(out, transform.apply(images, draws), atol=1e-3, rtol=0)
        torch.testing.assert_close(
            evaluate_transform(images.cuda(), preprocessing).cpu(),
            evaluate_transform(images, preprocessing),
            atol=1e-3,
            rtol=0,
        )

    def test_the_host_never_waits(self) -> None:
        images = pictures(16, 64, 64).cuda()
        aspects, generator = torch.ones(16, device="cuda"), torch.Generator("cuda").manual_seed(0)
        transform = Augmentation(Preprocessing(32))
        transform(images, aspects, generator=generator)
        torch.cuda.set_sync_debug_mode("error")
        try:
            transform(images, aspects, generator=generator)
            evaluate_transform(images, Preprocessing(32))
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def test_a_cuda_graph_draws_anew_at_every_replay(self) -> None:
        images = pictures(16, 64, 64).cuda()
        transform = Augmentation(Preprocessing(32))
        torch.cuda.manual_seed(0)
        for _ in range(3):
            transform(images)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = transform(images)
        torch.cuda.manual_seed(7)
        graph.replay()
        first = out.clone()
        graph.replay()
        assert not torch.equal(out, first)
        torch.cuda.manual_seed(7)
        torch.testing.assert_close(transform(images), first, atol=1e-5, rtol=0)
