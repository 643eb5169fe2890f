"""Images in the forms in which programs have them: each gives what its file gives."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mecam.data.domains import DataError
from mecam.models import resnet8
from mecam.preprocessing import Preprocessing
from mecam.serving import TrainedModel
from mecam.serving.pictures import pixels_of

COLOUR = np.random.default_rng(0).integers(0, 256, (50, 30, 3), dtype=np.uint8)
CHANNELS_FIRST = torch.from_numpy(COLOUR).permute(2, 0, 1)


@pytest.fixture(scope="module")
def model() -> TrainedModel:
    torch.manual_seed(0)
    return TrainedModel(resnet8(classes=2).eval(), ("blue", "red"), Preprocessing(32), "resnet8")


@pytest.mark.parametrize(
    "form",
    [
        COLOUR,
        np.asfortranarray(COLOUR),
        COLOUR / 255,
        (COLOUR / 255).astype(np.float32),
        CHANNELS_FIRST,
        (CHANNELS_FIRST / 255).requires_grad_(),
    ],
)
def test_an_array_gives_what_its_file_gives(form: Any, model: TrainedModel, tmp_path: Path) -> None:
    Image.fromarray(COLOUR).save(tmp_path / "a.png")
    [file], [content], [own] = (
        list(model.predictions(one)) for one in (tmp_path / "a.png", (tmp_path / "a.png").read_bytes(), form)
    )
    assert own.image is form
    assert own.probabilities == content.probabilities == file.probabilities


def test_a_batch_is_several_images_and_gray_has_one_channel(model: TrainedModel) -> None:
    gray = COLOUR[..., 0]
    for one in (gray, gray[..., None], torch.from_numpy(gray), torch.from_numpy(gray)[None]):
        assert (pixels_of(one) == gray[..., None]).all()
    for batch in (np.stack([COLOUR, COLOUR[::-1]]), torch.stack([CHANNELS_FIRST, CHANNELS_FIRST.flip(1)])):
        found = [one.probabilities for one in model.predictions(batch)]
        alone = [one.probabilities for part in (COLOUR, COLOUR[::-1]) for one in model.predictions(part)]
        assert len(found) == 2
        for one, other in zip(found, alone, strict=True):
            assert one == pytest.approx(other, abs=1e-6)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (CHANNELS_FIRST.numpy(), r"the array of shape \(3, 50, 30\) is not an image; expected \(height, width, 3\)"),
        (torch.from_numpy(COLOUR), r"the tensor of shape \(50, 30, 3\) is not an image; expected \(3, height, width\)"),
        (
            (CHANNELS_FIRST / 255 - 0.5) / 0.25,
            "has values from -2 to 2; expected floats from 0 to 1, or uint8. Pass im",
        ),
        (np.full((4, 4), np.nan), "has values from nan to nan"),
        (COLOUR.astype(np.int64), "is int64; expected uint8, or floats from 0 to 1"),
        (np.zeros((0, 4, 3), np.uint8), "is not an image"),
        (b"no image", "the image of 8 bytes cannot be read as an image: it is none of JPEG"),
    ],
)
def test_what_is_no_image_is_refused(form: Any, message: str, model: TrainedModel) -> None:
    with pytest.raises(DataError, match=message):
        pixels_of(form)
    [refused] = model.predictions(form)
    assert refused.label is None
    assert str(refused.error) in repr(refused)


@pytest.mark.parametrize("form", [5, None, (path for path in ("a.png", "b.png"))])
def test_what_is_not_a_list_of_images_is_refused(form: Any, model: TrainedModel) -> None:
    with pytest.raises(TypeError, match=r"expected an image or a list of images \(paths, .*\), got "):
        next(model.predictions(form))


def test_reprs_say_what_it_is(model: TrainedModel) -> None:
    assert repr(model) == "<TrainedModel: resnet8 at 32 px on cpu, 2 classes (blue, red)>"
    [found] = model.predictions(COLOUR)
    assert (
        repr(found) == f"<Prediction of the array of shape (50, 30, 3): {found.label}, {100 * found.probability:.1f} %>"
    )
