"""A head on cached features of a frozen backbone."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from mecam.data.shapes import shapes
from mecam.methods import METHODS
from mecam.models.registry import create
from mecam.recipe import Recipe, RecipeError
from mecam.serving import load_model
from mecam.training import features, train
from mecam.training.build import check_parts
from mecam.training.machine import find_machine
from mecam.training.run import Run
from mecam.training.state import load_state_dict, state_dict
from mecam.training.step import train_step

ON_FEATURES = [name for name in METHODS if METHODS.find(name).on_features]
DATA = shapes(per_class=4)


def head(**values: Any) -> Recipe:
    return Recipe(**{"trainable": "head", "target": "sketch", "steps": 4, "batch": 4, "evaluate_every": 2, **values})


def run_of(**values: Any) -> Run:
    return Run(head(**values), find_machine("cpu"), DATA)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MECAM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def files(cache: Path) -> list[Path]:
    return sorted(cache.glob("features/*/*.safetensors"))


def test_the_defaults_fit_a_head() -> None:
    recipe = Recipe(trainable="head", data="root", optimizer="mecam")
    assert (recipe.lr, recipe.steps, recipe.augment, recipe.virtual) == (1e-3, 500, "none", "none")
    assert recipe.backbone == "lite0"
    assert Recipe(trainable="all") == Recipe()
    assert Recipe().run_id == "shapes-all-erm-adam-none-seed0-44136fa355"


def test_the_head_is_trained_as_by_hand() -> None:
    """Plain SGD on the same batches, in float64."""
    plain = {"optimizer": "sgd", "lr": 0.1, "lr_schedule": "constant", "optimizer_settings": {"momentum": 0.0}}
    run, by_hand = run_of(**plain), run_of(**plain)
    linear = torch.nn.Linear(run.network.num_features, 7, dtype=torch.float64)
    linear.load_state_dict(by_hand.network.head.state_dict())
    for step in range(4):
        train_step(run, step)
        batch = by_hand.feed.next(step)
        linear.zero_grad()
        cross_entropy(linear(batch.images.double()), batch.labels).backward()
        for parameter in linear.parameters():
            parameter.data -= 0.1 * parameter.grad
    torch.testing.assert_close(run.network.head.weight.double(), linear.weight, rtol=1e-5, atol=1e-6)


def test_features_are_those_of_the_images_in_eval_mode() -> None:
    run = run_of(image_size=16)
    torch.manual_seed(1)
    network = create("resnet8", classes=7, image_size=16).eval()
    network.featurizer.load_state_dict(run.frozen)
    from mecam.data.augment import evaluate_transform

    images = DATA.images(2, np.arange(5))
    expected = network.pooled(evaluate_transform(images, network.preprocessing))
    torch.testing.assert_close(run.inputs.images(2, [0, 1, 2, 3, 4]), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ON_FEATURES)
def test_the_model_is_complete_and_its_backbone_unchanged(method: str, tmp_path: Path) -> None:
    folder = train(head(method=method), tmp_path / "out", device="cpu", data=DATA)
    weights, _ = folder.read_model()
    run = run_of(method=method)
    assert all(torch.equal(weights[f"featurizer.{name}"], tensor) for name, tensor in run.frozen.items())
    assert not torch.equal(weights["head.weight"], run.network.head.weight)
    predictions, model = folder.read_predictions(), load_model(folder.path)
    pictures = [
        DATA.images(int(domain), [int(index)])[0].permute(1, 2, 0).numpy()
        for domain, index in zip(predictions["domain"], predictions["index"], strict=True)
    ]
    confidence = model.probabilities(pictures).max(1).values
    torch.testing.assert_close(confidence, predictions["confidence"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("optimizer", ["sam", "mecam"])
def test_a_run_resumes(optimizer: str) -> None:
    whole = run_of(optimizer=optimizer, averaging="ema")
    for step in range(4):
        if step == 2:
            saved = copy.deepcopy(state_dict(whole, 1))
            resumed = run_of(optimizer=optimizer, averaging="ema")
            load_state_dict(resumed, saved)
        train_step(whole, step)
    assert set(saved["network"]) == {"head.weight", "head.bias"}
    for step in (2, 3):
        train_step(resumed, step)
    torch.testing.assert_close(resumed.trained.state_dict(), whole.trained.state_dict(), rtol=0, atol=0)


def test_features_are_computed_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_of()
    assert len(files(cache)) == 4
    monkeypatch.setattr(features, "features_of", None)  # calling it would fail
    again = run_of(target="art", optimizer="sam")
    for one, other in zip(first.inputs.features, again.inputs.features, strict=True):  # type: ignore[attr-defined]
        assert torch.equal(one, other)


@pytest.mark.parametrize("damage", [b"", b"x" * 400, None])
def test_damaged_features_are_computed_again(damage: bytes | None, cache: Path) -> None:
    before = run_of().inputs.images(0, [0, 1])
    file = files(cache)[0]
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if damage is None else damage)  # the last bit of a feature
    assert torch.equal(run_of().inputs.images(0, [0, 1]), before)
    assert file.read_bytes() == content


def test_the_key_has_all_that_features_depend_on() -> None:
    keys = {
        run.inputs.fingerprint
        for run in (
            run_of(),
            run_of(seed=1),  # other random weights
            run_of(image_size=24),
            Run(head(), find_machine("cpu"), shapes(per_class=5)),
            Run(head(precision="bf16"), find_machine("cpu", "bf16"), DATA),
        )
    }
    assert len(keys) == 5
    assert run_of(target="art", method="vrex").inputs.fingerprint in keys


def test_a_cache_that_cannot_be_written_is_done_without(cache: Path) -> None:
    cache.write_text("a file")
    assert run_of().inputs.images(0, [0]).shape == (1, 64)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ON_FEATURES])
def test_methods_on_images_are_refused(method: str) -> None:
    with pytest.raises(RecipeError, match=f"method={method} acts on images or changes the features.* erm"):
        check_parts(head(method=method))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"augment": True}, "augment=protocol changes images"),
        ({"optimizer": "mecam", "virtual": "mixstyle"}, "give virtual=none"),
    ],
)
def test_what_acts_inside_the_backbone_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        check_parts(head(**values))
