"""A run that was stopped by Ctrl-C is a model: it predicts, is evaluated, exported and reported."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

import mecam
from mecam.cli import app
from mecam.data.open import open_data
from mecam.recipe import Recipe
from mecam.runs import RunError, RunFolder, claim, find_run
from mecam.serving import load_model
from mecam.training import Interrupted, train
from tests.serving.runs import write_images

TINY = {"backbone": "resnet8", "image_size": 32, "batch": 4, "evaluate_every": 5, "lr": 1e-3}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MECAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("data") / "images")


@pytest.fixture(scope="module")
def stopped(images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The --out of a run that got a SIGINT in a process of its own, and its lines on stderr."""
    out = tmp_path_factory.mktemp("out")
    words = [sys.executable, "-m", "mecam.cli", "train", "--data", str(images), "--steps", "100000", "--out", str(out)]
    words += [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]
    with subprocess.Popen([*words, "--device", "cpu"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line.strip())
            if line.startswith("step 10 "):
                process.send_signal(signal.SIGINT)
        assert process.wait(120) == 128 + signal.SIGINT
    return out, lines


def ask(*words: object) -> Result:
    return CliRunner().invoke(app, list(map(str, words)))


def test_the_signal_is_acknowledged_before_the_run_is_saved(stopped: tuple[Path, list[str]]) -> None:
    received, saved = [line for line in stopped[1] if line.startswith("mecam: ")]
    assert received.startswith("mecam: SIGINT received; saving after the current step, then stopping")
    assert saved.startswith("mecam: stopped by SIGINT after step ")


@pytest.mark.parametrize("command", ["predict", "evaluate", "export", "report"])
def test_it_is_used_by_every_command(
    command: str, stopped: tuple[Path, list[str]], images: Path, tmp_path: Path
) -> None:
    (run,) = (RunFolder(file.parent) for file in stopped[0].glob("*/run.json"))
    words = {
        "predict": [images / "lab"],
        "evaluate": [images],
        "export": ["--out", tmp_path, "--format", "safetensors"],
        "report": ["--out", tmp_path / "report.html"],
    }
    for path in (stopped[0], run.path):
        result = ask(command, path, *words[command])
        assert result.exit_code == 0, result.output
        lines = [line for line in result.stderr.splitlines() if "was stopped" in line]
        state = run.load_checkpoint()
        assert state is not None
        assert len(lines) == 1
        assert f"the run in {run.path} was stopped after step {state['step']} of 100000" in lines[0]
        assert re.search(rf"step {state['best']['step']}\b", lines[0])
    if command == "evaluate":
        assert "accuracy" in result.stdout
        assert json.loads(ask(*as_json(command, run.path, images)).stdout)["stopped"] is not None
    elif command == "export":
        weights = state["best"]["weights"]
        exported = load_file(tmp_path / "model.safetensors")
        assert weights.keys() == exported.keys()
        assert all(torch.equal(weights[name], exported[name]) for name in weights)
    elif command == "report":
        text = (tmp_path / "report.html").read_text(encoding="utf-8")
        assert f"was stopped after step {state['step']} of 100000" in text


def as_json(command: str, *words: object) -> list[object]:
    return [command, *words, "--format", "json"]


def test_the_weights_are_those_that_an_evaluation_was_best_with(stopped: tuple[Path, list[str]], images: Path) -> None:
    """The model's accuracy on all images is that of the record at its step."""
    run = find_run(stopped[0])
    state = run.load_checkpoint()
    assert state is not None
    [record] = [one for one in run.read_records() if one["step"] == state["best"]["step"]]
    held_out = {name: own for name, own in record["splits"].items() if name.endswith(" out")}
    assert sum(own["accuracy"] for own in held_out.values()) / len(held_out) == pytest.approx(state["best"]["value"])
    assert load_model(run.path).classes == ("blue", "red")
    assert mecam.evaluate(run.path, images).images == 48


def interrupted(out: Path, images: Path, at: int, **values: object) -> RunFolder:
    """A run of this process that gets a SIGTERM at a step."""
    recipe = Recipe(**{"data": str(images), "steps": 30, **TINY, **values})

    def stop(event: object) -> None:
        if event.done == at:  # type: ignore[attr-defined]
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted):
        train(recipe, out, device="cpu", progress=stop, data=open_data(images))
    return RunFolder(out / recipe.run_id)


@pytest.mark.parametrize(
    "values",
    [
        {"averaging": "swad"},
        {"averaging": "ema", "selection": "last"},
        {"method": "arm", "target": "lab"},
        {"backbone": "timm/resnet10t", "pretrained": False},
    ],
    ids=str,
)
def test_kinds_of_runs(values: dict[str, object], images: Path, tmp_path: Path) -> None:
    run = interrupted(tmp_path, images, 7, **values)
    model = load_model(run.path)
    assert model.stopped is not None
    assert "was stopped after step 7 of 30" in model.stopped
    assert mecam.evaluate(model, images).images == 48


def test_a_run_without_an_evaluation_has_no_model(images: Path, tmp_path: Path) -> None:
    run = interrupted(tmp_path, images, 0)
    state = run.load_checkpoint()
    assert state is not None
    state["best"]["weights"] = {}
    run.save_checkpoint(state)
    with pytest.raises(
        RunError, match=r"is not finished and has no model: .*before its first evaluation\. Run its mecam"
    ):
        load_model(run.path)
    del state["facts"]
    run.save_checkpoint({**state, "best": {"weights": {"head.bias": torch.zeros(2)}, "step": 0}})
    with pytest.raises(RunError, match=r"has no model: its checkpoint, of an earlier version of mecam"):
        load_model(run.path)
    for file in run.checkpoint_folder.iterdir():
        file.unlink()
    for command in ("predict", "evaluate"):
        result = ask(command, tmp_path, images)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert "has no model: it has no checkpoint yet. Run its mecam train command again" in result.stderr
    assert ask("report", tmp_path, "--out", tmp_path / "a.html").exit_code == 0  # its records are there
    run.records_file.unlink()
    result = ask("report", tmp_path, "--out", tmp_path / "b.html")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "has not been evaluated yet, so there is nothing to report. Run its mecam train" in result.stderr


def test_a_run_that_is_under_way_is_not_called_stopped(images: Path, tmp_path: Path) -> None:
    run = interrupted(tmp_path, images, 7)
    with claim(run.path):
        note = load_model(run.path).stopped
    assert note is not None
    assert "is running; its last checkpoint is of step 7 of 30" in note


def test_it_resumes_after_use(images: Path, tmp_path: Path) -> None:
    run = interrupted(tmp_path / "one", images, 7)
    assert load_model(run.path).stopped is not None
    recipe = Recipe(**{"data": str(images), "steps": 30, **TINY})
    finished = train(recipe, tmp_path / "one", device="cpu", data=open_data(images))
    whole = train(recipe, tmp_path / "two", device="cpu", data=open_data(images))
    assert load_model(finished.path).stopped is None
    assert finished.model_file.read_bytes() == whole.model_file.read_bytes()
