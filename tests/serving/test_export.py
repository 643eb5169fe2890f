"""Exports, used as a program without mecam and torch would."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from mecam.data.shapes import shapes
from mecam.models import create
from mecam.preprocessing import Preprocessing
from mecam.recipe import Recipe
from mecam.serving import ExportError, TrainedModel, export, find_images, load_model
from mecam.training import train
from tests.serving.runs import write_images

# what a user would write, after reading preprocessing.json
SCRIPT = """
import json, sys
import numpy, onnxruntime
from PIL import Image

folder, *images = sys.argv[1:]
told = json.load(open(f"{folder}/preprocessing.json"))
look = told["preprocessing"]
session = onnxruntime.InferenceSession(f"{folder}/model.onnx")
for image in images:
    picture = Image.open(image).convert("RGB").resize([look["image_size"]] * 2, Image.Resampling.BILINEAR)
    pixels = (numpy.asarray(picture) / 255 - look["mean"]) / look["std"]
    batch = pixels.transpose(2, 0, 1)[None].astype(numpy.float32)
    (logits,) = session.run([told["output"]["name"]], {told["input"]["name"]: batch})
    shares = numpy.exp(logits[0] - logits[0].max())
    print(told["classes"][logits[0].argmax()], shares.max() / shares.sum())
assert "torch" not in sys.modules
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    recipe = Recipe(steps=10, batch=4, evaluate_every=10)
    return load_model(train(recipe, tmp_path_factory.mktemp("run"), device="cpu", data=shapes(per_class=6)).path)


def test_a_script_without_mecam_prints_what_predict_prints(model: TrainedModel, tmp_path: Path) -> None:
    images = find_images([write_images(tmp_path / "images")])[::4]
    file = export(model, tmp_path / "out")
    assert sorted(path.name for path in file.parent.iterdir()) == ["model.onnx", "preprocessing.json"]
    words = [sys.executable, "-c", SCRIPT, str(file.parent), *map(str, images)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    for line, found in zip(done.stdout.splitlines(), model.predictions(images), strict=True):
        label, probability = line.split()
        assert label == found.label
        assert float(probability) == pytest.approx(found.probability, abs=1e-5)


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
