"""The commands as functions: under the words of the command line, on a small folder of images."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mecam
from mecam.fitting import Verdict
from mecam.recipe import Recipe, RecipeError
from mecam.runs import RunFolder
from mecam.training.speed import Cost
from tests.serving.runs import CLASSES, write_images

TINY: dict[str, Any] = {"backbone": "resnet8", "image_size": 32, "batch": 4, "steps": 2, "evaluate_every": 1}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MECAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("data") / "images")


@pytest.fixture(scope="module")
def run(root: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    out = tmp_path_factory.mktemp("run")
    return mecam.train(data=root, target="home", optimizer="sam", out=out, device="cpu", **TINY)


def test_train_takes_the_words_of_the_command(run: RunFolder, root: Path, tmp_path: Path) -> None:
    recipe = Recipe(data=str(root), target="home", optimizer="sam", **TINY)
    assert run.path.name == recipe.run_id
    (tmp_path / "recipe.toml").write_text(f'data = "{root}"\ntarget = "lab"\noptimizer = "sam"\nseed = 3\n')
    from_file = mecam.train(tmp_path / "recipe.toml", run.path.parent, target="home", seed=0, device="cpu", **TINY)
    assert from_file.path == run.path
    assert mecam.train(recipe, run.path.parent, steps=2).path == run.path
    with pytest.raises(RecipeError, match="no entry 'optimiser'; did you mean optimizer"):
        mecam.train(data=root, optimiser="sam")
    with pytest.raises(RecipeError, match=r"is a folder and not a recipe; images are given with --data"):
        mecam.train(root)


@pytest.mark.parametrize("command", [mecam.train, mecam.bench])
def test_results_among_the_images_are_refused(command: Any, root: Path) -> None:
    before = sorted(root.iterdir())
    with pytest.raises(ValueError, match=r"lies in .*, and would be read as images; give an --out outside"):
        command(data=root, target="home", out=root / "results", device="cpu", **TINY)
    assert sorted(root.iterdir()) == before


def test_minutes_set_the_steps_once(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mecam.training.sizing.cost_of", lambda *_: Cost(step=2.0))
    entries = {name: value for name, value in TINY.items() if name not in ("steps", "evaluate_every")}
    run = mecam.train(data=root, minutes=1, out=tmp_path, device="cpu", **entries)
    steps = run.read_run()["recipe"]["steps"]
    assert steps in (25, 26)
    monkeypatch.setattr("mecam.training.sizing.cost_of", lambda *_: Cost(step=1.0))
    assert mecam.train(data=root, minutes=1, out=tmp_path, device="cpu", **entries).path == run.path
    with pytest.raises(RecipeError, match="leave out one of minutes and steps"):
        mecam.train(data=root, minutes=1, steps=3)


def test_a_run_can_be_printed_and_used(run: RunFolder, root: Path) -> None:
    accuracy = f"{100 * run.read_result()['target_accuracy']:.1f} %"
    assert repr(run) == f"<RunFolder {run.path}: finished, {accuracy} on home, unseen>"
    lines = dict(line.split("  ", 1) for line in run.summary().splitlines())
    assert lines["optimizer"].strip() == "sam"
    assert lines["accuracy on home, unseen"].strip() == accuracy
    assert lines["time"].strip().endswith(" for 3 steps")  # steps are numbered from 0
    assert lines["folder"].strip() == str(run.path)
    assert mecam.load_model(run).classes == CLASSES
    assert mecam.evaluate(run, root / "home").images == 16


def test_a_run_that_has_not_finished_can_be_printed(run: RunFolder, tmp_path: Path) -> None:
    other = RunFolder(tmp_path / "run")
    assert repr(other) == f"<RunFolder {other.path}: not started>"
    other.begin(run.read_run()["recipe"], {}, run_id="run")
    assert "not evaluated yet" in repr(other)
    other.append(run.read_records()[0])
    assert "not finished, evaluated at step 0 of 2" in other.summary()
    other.run_file.write_text("{")
    assert repr(other).startswith(f"<RunFolder {other.path}: cannot be read: {other.run_file} is damaged")


def test_progress_is_shown_on_request(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked: dict[str, Any] = {"data": root, "target": "lab", "device": "cpu", **TINY}
    run = mecam.train(out=tmp_path / "silent", **asked)
    assert capsys.readouterr() == ("", "")
    mecam.train(out=tmp_path / "shown", progress=True, **asked)
    assert "step 2 of 2: loss " in capsys.readouterr().err
    mecam.evaluate(run, root, progress=True)
    assert capsys.readouterr().err == ""  # a bar on a terminal, and no lines elsewhere
    mecam.bench(**{**asked, "data": str(root)}, seeds=0, out=tmp_path / "shown", progress=True)  # it has finished
    assert "benchmark 1 of 1 runs done" in capsys.readouterr().err


def test_a_verdict_can_be_printed() -> None:
    verdict = Verdict(
        Path("model"), "head", 68.8, 35.7, 100.0, {"a": 70.0, "b": 67.6}, {"dog": 60.0}, 20.0, {}, seconds=3.0
    )
    expected = "<Verdict on model: 68.8 % expected in a new domain, 95 % interval 35.7 to 100.0 %>"
    assert repr(verdict) == expected
    assert str(verdict).startswith("expected accuracy in a new domain: 68.8 %")
