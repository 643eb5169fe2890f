"""LoRA: adapters of a frozen backbone, merged into plain weights when the model is saved."""

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mecam.data.shapes import shapes
from mecam.models import create
from mecam.models.lora import adapt, merged, remove_adapters
from mecam.recipe import Recipe
from mecam.runs import RunFolder
from mecam.serving import load_model
from mecam.training import train
from mecam.training.machine import find_machine
from mecam.training.result import validate
from mecam.training.run import Run
from mecam.training.state import load_state_dict, state_dict
from mecam.training.step import train_step

pytest.importorskip("peft", reason="peft is not installed: pip install 'mecam[lora]'")
pytest.importorskip("timm")
DATA = shapes(per_class=4)
VIT = {"backbone": "timm/test_vit", "pretrained": False, "image_size": 32}


def recipe_of(**values: Any) -> Recipe:
    small = {"target": "sketch", "steps": 3, "batch": 4, "evaluate_every": 3, "lr": 0.01}
    return Recipe(**{**small, **VIT, "trainable": "lora", "lora_rank": 2, **values})


def run_of(**values: Any) -> Run:
    return Run(recipe_of(**values), find_machine("cpu"), DATA)


def test_adapters_start_as_the_function_and_merge_into_plain_weights() -> None:
    torch.manual_seed(0)
    plain = create("timm/test_vit", classes=3, pretrained=False, image_size=32).double().eval()
    network = copy.deepcopy(plain)
    adapt(network, rank=2)
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(network(images), plain(images), rtol=0, atol=1e-12)
    for name, parameter in network.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    state = network.state_dict()
    a, b = (state[f"featurizer.blocks.0.mlp.fc1.lora_{part}.default.weight"] for part in "AB")
    by_hand = plain.featurizer.blocks[0].mlp.fc1.weight + b @ a
    assert a.shape[0] == b.shape[1] == 2
    torch.testing.assert_close(merged(state)["featurizer.blocks.0.mlp.fc1.weight"], by_hand, rtol=0, atol=1e-12)
    expected = network(images)
    plain.load_state_dict(merged(state))
    torch.testing.assert_close(plain(images), expected, rtol=0, atol=1e-10)
    remove_adapters(network)
    assert network.state_dict().keys() == plain.state_dict().keys()
    assert merged(plain.state_dict()).keys() == plain.state_dict().keys(), "a plain state stays as it is"


@pytest.mark.parametrize("optimizer", ["adam", "mecam"])
def test_the_backbone_stays_as_it_is(optimizer: str) -> None:
    run = run_of(optimizer=optimizer)
    before = {name: parameter.clone() for name, parameter in run.trained.named_parameters()}
    for step in (0, 1):
        train_step(run, step)
    changed = {name for name, parameter in run.trained.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed == {name for name in before if ".lora_" in name or name.startswith("head.")}
    trained = [parameter for group in run.optimizer.param_groups for parameter in group["params"]]
    assert len(trained) == len(changed)


def test_a_saved_model_is_plain_and_predicts_what_was_evaluated(tmp_path: Path) -> None:
    folder = train(recipe_of(optimizer="sam", averaging="swad"), tmp_path, device="cpu", data=DATA)
    weights, _ = folder.read_model()
    assert weights.keys() == create("timm/test_vit", classes=7, pretrained=False, image_size=32).state_dict().keys()
    found, model = folder.read_predictions(), load_model(folder.path)
    images = DATA.images(int(found["domain"][0]), found["index"].numpy())
    pictures = [image.permute(1, 2, 0).numpy() for image in images]
    torch.testing.assert_close(model.probabilities(pictures).max(1).values, found["confidence"], rtol=1e-4, atol=1e-5)


def test_a_run_resumes_and_a_stopped_one_can_be_used(tmp_path: Path) -> None:
    resumed, whole = run_of(optimizer="mecam"), run_of(optimizer="mecam")
    train_step(whole, 0)
    validate(whole, 0)
    folder = RunFolder(tmp_path / whole.recipe.run_id)
    folder.begin(whole.recipe.to_dict(), {}, run_id=whole.recipe.run_id)
    folder.save_checkpoint(state_dict(whole, 0))
    images = torch.zeros(1, 3, 32, 32)
    best = whole.trained.eval()(images)
    whole.trained.train()
    train_step(whole, 1)
    load_state_dict(resumed, folder.load_checkpoint())
    train_step(resumed, 1)
    torch.testing.assert_close(resumed.trained.state_dict(), whole.trained.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(load_model(folder.path).network(images), best, rtol=1e-4, atol=1e-5)


def test_a_network_without_linear_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="trainable=lora adapts linear layers, and this backbone has none; take"):
        run_of(backbone="resnet8")


def test_without_peft_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError, match=r"trainable=lora needs peft: pip install 'mecam\[lora\]'"):
        run_of()
