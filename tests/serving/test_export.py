"""Exports, used as a program without mecam and torch would."""

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, features
from safetensors.torch import load_file
from torch import Tensor, nn

from mecam.data.decode import decode
from mecam.data.domains import DataError
from mecam.data.shapes import shapes
from mecam.models import create
from mecam.preprocessing import Preprocessing, Resize
from mecam.recipe import Recipe
from mecam.serving import ExportError, TrainedModel, export, find_images, load_model
from mecam.serving import infer as exported_program
from mecam.training import train
from tests.serving.runs import write_images

# the exported program, where mecam and torch are not installed
WITHOUT = """
import runpy, sys
sys.modules |= {"mecam": None, "torch": None}
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    recipe = Recipe(steps=10, batch=4, evaluate_every=10)
    return load_model(train(recipe, tmp_path_factory.mktemp("run"), device="cpu", data=shapes(per_class=6)).path)


@pytest.fixture(scope="module")
def exported(model: TrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(model, tmp_path_factory.mktemp("exported")).parent


def infer(folder: Path, *images: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT, folder / "infer.py", *images]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def images_of_any_kind(folder: Path) -> list[Path]:
    """Files of other sizes, modes and orientations; one cannot be read."""
    folder.mkdir()
    colour = Image.fromarray(np.random.default_rng(1).integers(0, 256, (50, 30, 3), dtype=np.uint8))
    turned = Image.Exif()
    turned[0x0112] = 6
    colour.save(folder / "turned.jpg", exif=turned)
    colour.resize((32, 32)).save(folder / "size of the input.png")
    colour.convert("P").save(folder / "palette.png", transparency=3)
    colour.convert("CMYK").save(folder / "print.jpg")
    colour.save(folder / "photo.webp", lossless=True)
    translucent = colour.convert("RGBA")
    translucent.putalpha(colour.convert("L"))
    translucent.save(folder / "translucent.png")
    Image.fromarray(np.asarray(colour.convert("L")).astype(np.uint16) * 255).save(folder / "sixteen bits.png")
    if features.check("avif"):
        colour.save(folder / "photo.avif")
    turned[0x0112] = 8
    colour.save(folder / "scan.tif", exif=turned)
    Image.new("F", (4, 4)).save(folder / "float.tif")
    return sorted(folder.iterdir())


def test_the_exported_program_prints_what_predict_prints(model: TrainedModel, exported: Path, tmp_path: Path) -> None:
    images = [*find_images([write_images(tmp_path / "images")])[::4], *images_of_any_kind(tmp_path / "odd")]
    assert sorted(path.name for path in exported.iterdir()) == ["infer.py", "model.onnx", "preprocessing.json"]
    done = infer(exported, *images)
    rows = list(csv.DictReader(done.stdout.splitlines()))
    found = [one for one in model.predictions(images) if one.error is None]
    assert [(row["image"], row["class"]) for row in rows] == [(str(one.image), one.label) for one in found]
    assert [float(row["probability"]) for row in rows] == pytest.approx([one.probability for one in found], abs=1e-5)
    assert done.stderr.startswith(f"{tmp_path / 'odd' / 'float.tif'} cannot be read as an image: the range of its ")
    assert (done.returncode, len(rows)) == (1, len(images) - 1)


@pytest.mark.attack("Untrusted files")
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_the_exported_program_refuses_what_predict_refuses(exported: Path, tmp_path: Path) -> None:
    """34 bytes that claim 9,460 x 9,460 pixels, one row more than is allowed."""
    size = (9459 | 9459 << 14).to_bytes(4, "little")  # less one each, in 14 bits
    body = b"WEBPVP8L" + (14).to_bytes(4, "little") + b"\x2f" + size + bytes.fromhex("888808000000000000")
    file = tmp_path / "bomb.webp"
    file.write_bytes(b"RIFF" + len(body).to_bytes(4, "little") + body)
    done = infer(exported, file)
    assert (done.returncode, done.stdout) == (1, "image,class,probability\n")
    assert done.stderr.startswith(
        f"{file} cannot be read as an image: Image size (89491600 pixels) exceeds limit of 89"
    )
    with pytest.raises(DataError, match=r"bomb\.webp is refused .*: 9460 x 9460 is more than 89,478,485 pixels"):
        decode(file, name=str(file))


@pytest.mark.parametrize("resize", ["squash", "crop", "letterbox"])
def test_the_exported_program_resizes_as_predict_does(model: TrainedModel, resize: Resize) -> None:
    own = replace(model, preprocessing=replace(model.preprocessing, resize=resize))
    assert Preprocessing.from_dict(own.preprocessing.describe()) == own.preprocessing
    image = Image.effect_noise((60, 41), 90).convert("RGB")
    pixels = torch.from_numpy(exported_program.preprocess(image, own.preprocessing.describe()))[None]
    with torch.inference_mode():
        expected = own.network(pixels).softmax(1)
    torch.testing.assert_close(own.probabilities([np.asarray(image)]), expected, rtol=1e-4, atol=1e-6)


def test_safetensors_hold_the_weights(model: TrainedModel, tmp_path: Path) -> None:
    file = export(model, tmp_path / "new" / "folder", form="safetensors")
    weights = load_file(file)
    again = create("resnet8", classes=len(model.classes))
    again.load_state_dict(weights)
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(again.eval()(images), model.network(images))
    facts = json.loads((file.parent / "preprocessing.json").read_text())
    assert facts["classes"] == list(model.classes)
    assert facts["backbone"] == "resnet8"
    assert facts["input"]["shape"] == ["batch", 3, 32, 32]


class Moody(nn.Module):
    """Gives other logits whenever it is asked, as no export of it can."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.calls = 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        return images.mean((2, 3)) * self.weight * self.calls


@pytest.mark.parametrize("form", ["onnx", "safetensors"])
def test_an_export_that_differs_is_not_written(form: str, tmp_path: Path) -> None:
    moody = TrainedModel(Moody(), ("a", "b", "c"), Preprocessing(8, (0.5,) * 3, (0.5,) * 3), "none")
    if form == "safetensors":
        moody.network.register_forward_hook(lambda module, _, out: out if module is moody.network else -out)
    with pytest.raises(ExportError, match=r"logits of the .* export differ from the model's"):
        export(moody, tmp_path / "out", form=form)
    assert not (tmp_path / "out").exists()


def test_an_unknown_format_is_refused(model: TrainedModel, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="there is no format 'pickle'; there are onnx and safetensors"):
        export(model, tmp_path, form="pickle")


@pytest.mark.parametrize("method", ["arm", "mtl"])
def test_a_model_that_looks_at_batch_mates_is_exported_for_one_image(method: str, tmp_path: Path) -> None:
    recipe = Recipe(method=method, target="sketch", steps=1, batch=8, image_size=16)
    run = train(recipe, tmp_path / "runs", device="cpu", data=shapes(per_class=4))
    model = load_model(run.path)
    export(model, tmp_path / "out")
    facts = json.loads((tmp_path / "out" / "preprocessing.json").read_text())
    assert facts["input"]["shape"] == [1, 3, 16, 16]
    images = write_images(tmp_path / "images")
    paths = find_images([images])
    together = [found.probability for found in model.predictions(paths)]
    alone = [next(model.predictions([path])).probability for path in paths]
    assert together == alone
