"""Runs on a backbone's own image size and interpolation, and what is left of them in the model's file."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from mecam.analysis.runs import objective_of
from mecam.data.augment import evaluate_transform
from mecam.data.open import open_data
from mecam.data.store import fit
from mecam.models.network import Network
from mecam.preprocessing import Resize
from mecam.recipe import Recipe, RecipeError
from mecam.serving import export, load_model
from mecam.training import train
from mecam.training.evaluate import logits_of
from mecam.training.machine import find_machine
from mecam.training.run import Run
from tests.data.folders import make_folder
from tests.serving.runs import write_images

SMALL = {"steps": 1, "batch": 2, "evaluate_every": 1, "target": "sketch", "optimizer": "mecam", "pretrained": False}


def test_recipes_ask_for_the_backbones_own_size() -> None:
    expected = {"lite0": 224, "lite1": 240, "lite2": 260, "resnet50": 224}
    assert {name: Recipe(data="PACS", backbone=name).image_size for name in expected} == expected
    assert Recipe(data="PACS", backbone="lite1", image_size=None).image_size == 240
    assert Recipe(data="PACS", backbone="lite1", image_size=128).image_size == 128
    assert Recipe(data="PACS", backbone="timm/vit_small_patch14_dinov2").image_size is None
    # the embedded set has images of 32 pixels
    assert Recipe(backbone="lite1").image_size == Recipe(backbone="timm/resnet18").image_size == 32
    with pytest.raises(RecipeError, match="image_size=4 is not allowed"):
        Recipe(image_size=4)


def test_run_ids_are_those_of_before() -> None:
    """Of recipes that were made when every data set but shapes had 224 pixels."""
    assert Recipe(data="PACS", backbone="lite0").run_id == "PACS-all-erm-adam-none-seed0-9005b056e1"
    assert Recipe().run_id == "shapes-all-erm-adam-none-seed0-44136fa355"
    explicit = Recipe(data="PACS", backbone="lite0", image_size=224, target="photo")
    assert explicit.run_id == Recipe(data="PACS", target="photo").run_id


def test_a_run_at_a_models_own_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = replace(Recipe(**{**SMALL, "backbone": "timm/test_vit"}), image_size=None)
    run = train(recipe, tmp_path, device="cpu")
    facts = run.read_model()[1]
    assert (facts["image_size"], facts["interpolation"]) == (160, "bicubic")
    assert Recipe(**run.read_run()["recipe"]) == recipe

    create = timm.create_model
    asked: list[bool] = []
    monkeypatch.setattr(timm, "create_model", lambda *a, **k: asked.append(k["pretrained"]) or create(*a, **k))
    model = load_model(run.path)
    assert set(asked) == {False}  # nothing is downloaded
    assert (model.preprocessing.size, model.preprocessing.interpolation) == (160, "bicubic")
    picture = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    theirs = np.asarray(Image.fromarray(picture).resize((160, 160), Image.Resampling.BICUBIC))
    assert np.array_equal(model._resize(picture), theirs)
    assert "Pillow's BICUBIC" in str(model.preprocessing.describe())
    assert objective_of(run.path, limit=2).value() > 0


def test_a_transformer_at_another_size_is_opened_and_exported_as_it_was_built(tmp_path: Path) -> None:
    run = train(Recipe(**{**SMALL, "backbone": "timm/test_vit", "image_size": 48}), tmp_path, device="cpu")
    model = load_model(run.path)
    assert model.preprocessing.size == 48
    assert isinstance(model.network, Network)
    assert model.network(torch.zeros(1, 3, 48, 48)).shape == (1, 7)
    assert export(model, tmp_path / "out", form="safetensors").exists()


def test_model_files_without_an_interpolation_are_bilinear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train(Recipe(**{**SMALL, "pretrained": None}), tmp_path, device="cpu")
    weights, facts = run.read_model()
    assert facts.pop("interpolation") == "bilinear"
    monkeypatch.setattr(type(run), "read_model", lambda _: (weights, facts))
    assert load_model(run.path).preprocessing.interpolation == "bilinear"


@pytest.mark.parametrize("resize", ["crop", "letterbox"])
def test_a_run_resizes_in_training_evaluation_and_prediction(
    resize: Resize, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MECAM_CACHE", str(tmp_path / "cache"))
    data = open_data(write_images(tmp_path / "images"))
    values = {"data": str(tmp_path / "images"), "target": "lab", "steps": 1, "batch": 2, "backbone": "resnet8"}
    recipe = Recipe(**values, image_size=32, resize=resize, augment="none")
    run = Run(recipe, find_machine("cpu"), data)
    pictures = [np.asarray(Image.open(tmp_path / "images" / data.sample_name(0, one))) for one in range(2)]
    pixels = [fit(picture, (32, 32), "bilinear", resize) for picture in pictures]
    expected = evaluate_transform(torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2), run.network.preprocessing)
    seen: list[torch.Tensor] = []
    run.network.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    logits_of(run.network, data, 0, np.arange(2), run.network.preprocessing, device=torch.device("cpu"))
    torch.testing.assert_close(seen[0], expected, atol=0.05, rtol=0)  # Pillow rounds to 8 bits
    if resize == "letterbox":
        assert torch.equal(run.feed.next(0).images[:, :, 0], expected[:1, :, 0].expand(4, 3, 32)), "black"
    model = load_model(train(recipe, tmp_path / "out", device="cpu", data=data).path)
    assert model.preprocessing == run.network.preprocessing
    assert np.array_equal(model._resize(pictures[0]), pixels[0])


@pytest.mark.parametrize("trainable", ["all", "head"])
def test_an_image_of_another_size_in_the_target_changes_no_weight(
    trainable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MECAM_CACHE", str(tmp_path / "cache"))
    root = make_folder(tmp_path / "data", size=(16, 16))
    values = {"backbone": "resnet8", "image_size": 8, "target": "photo", "trainable": trainable, "pretrained": False}
    recipe = Recipe(data=str(root), steps=2, evaluate_every=1, batch=2, holdout=0.4, **values)
    before = train(recipe, tmp_path / "before", device="cpu")
    Image.fromarray(np.zeros((9, 21, 3), dtype=np.uint8)).save(root / "photo/cat/0000.png")
    after = train(recipe, tmp_path / "after", device="cpu")
    assert after.model_file.read_bytes() == before.model_file.read_bytes()
    splits = [folder.read_result()["splits"] for folder in (before, after)]
    assert splits[0]["art in"] == splits[1]["art in"]
    assert splits[0]["photo in"] != splits[1]["photo in"]
