"""Several models as one."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from mecam.cli import app
from mecam.data.shapes import shapes
from mecam.recipe import Recipe
from mecam.runs import RunError
from mecam.serving import export, load_ensemble, load_model
from mecam.training import train
from tests.serving.runs import write_images

DATA = shapes(per_class=4)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    out = tmp_path_factory.mktemp("runs")
    values = [{"averaging": "ema"}, {"seed": 1}, {"image_size": 24}]
    base = Recipe(steps=3, batch=4, image_size=16, target="sketch", lr=0.01)
    return [train(replace(base, **each), out, device="cpu", data=DATA).path for each in values]  # type: ignore[arg-type]


def test_its_outputs_are_the_mean_of_the_members_outputs(runs: list[Path]) -> None:
    pictures = list(np.random.default_rng(0).integers(0, 256, (5, 20, 30, 3), dtype=np.uint8))
    members = [load_model(run) for run in runs[:2]]
    each = torch.stack([member.probabilities(pictures).double() for member in members])
    expected = each.log().mean(0).softmax(1)  # logits up to a constant, which the softmax removes
    found = load_ensemble(runs[:2]).probabilities(pictures).double()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(found, each[0], atol=1e-3)


def test_the_commands_take_further_models(runs: list[Path], tmp_path: Path) -> None:
    images = write_images(tmp_path / "images")
    further = ["--with", str(runs[1]), "--device", "cpu"]
    printed = CliRunner().invoke(app, ["predict", str(runs[0]), str(images), "--probabilities", *further])
    assert printed.exit_code == 0, printed.output
    alone = CliRunner().invoke(app, ["predict", str(runs[0]), str(images), "--probabilities", "--device", "cpu"])
    assert len(printed.stdout.splitlines()) == len(alone.stdout.splitlines()) == 49
    assert printed.stdout != alone.stdout


def test_it_can_be_exported(runs: list[Path], tmp_path: Path) -> None:
    assert export(load_ensemble(runs[:2]), tmp_path, form="safetensors").is_file()  # which compares the outputs


def test_models_that_do_not_fit_together_are_refused(runs: list[Path]) -> None:
    with pytest.raises(RunError, match=r"has other preprocessing than .*; an ensemble takes models that share them"):
        load_ensemble(runs)
