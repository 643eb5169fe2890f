"""The length of `mecam train`: a time budget, a dry run, and what a long run prints and asks."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import mecam
import mecam.training
from mecam.cli import app
from mecam.cli.train import Request
from mecam.progress import Event
from mecam.runs import RunFolder
from mecam.training import sizing
from mecam.training.speed import Cost
from tests.serving.runs import write_images

RESULTS = ("run.json", "model.safetensors", "records.jsonl")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MECAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield write_images(tmp_path_factory.mktemp("data") / "images")


@pytest.fixture
def words(images: Path) -> list[str]:
    return [
        "train",
        "--data",
        str(images),
        "--backbone",
        "resnet8",
        "--image-size",
        "16",
        "--batch",
        "2",
        "--lr",
        "0.001",
    ]


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which a step takes two seconds, and every run may be long."""
    monkeypatch.setattr(sizing, "cost_of", lambda *_: Cost(step=2.0, evaluation=1.0, final=1.0))
    monkeypatch.setattr(sizing, "SMALL", 0)


def mecam_(*words: str, answer: str | None = None) -> Result:
    result = CliRunner().invoke(app, words, input=answer)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def run_in(out: Path) -> Path:
    [found] = (file.parent for file in out.glob("*/run.json"))
    return found


def interrupt_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Send SIGTERM to every training from this step on."""
    train = mecam.training.train

    def interrupted(*arguments: Any, progress: Any, **options: Any) -> RunFolder:
        def watched(event: Event) -> None:
            progress(event)
            if event.task == "step" and event.done >= step:
                signal.raise_signal(signal.SIGTERM)

        return train(*arguments, progress=watched, **options)

    monkeypatch.setattr(mecam.training, "train", interrupted)


@pytest.mark.usefixtures("speed")
def test_a_run_in_a_time_budget_resumes_with_the_steps_it_began_with(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*words, "--minutes", "1", "--lr-schedule", "cosine", "--out"]
    assert mecam_(*command, str(tmp_path / "whole")).exit_code == 0
    whole = run_in(tmp_path / "whole")
    recipe = json.loads((whole / "run.json").read_text())["recipe"]
    steps = recipe["steps"]
    assert 10 <= steps < 30
    with monkeypatch.context() as patch:
        interrupt_at(patch, 3)
        stopped = mecam_(*command, str(tmp_path / "out"))
    assert (stopped.exit_code, "The same command resumes it" in stopped.stderr) == (143, True)
    monkeypatch.setattr(sizing, "cost_of", lambda *_: Cost(step=0.1))  # a machine that is faster by now
    resumed = mecam_(*command, str(tmp_path / "out"))
    assert resumed.exit_code == 0
    assert f"of {steps}: " in resumed.stderr
    for name in RESULTS[1:]:
        assert (run_in(tmp_path / "out") / name).read_bytes() == (whole / name).read_bytes(), name
    assert mecam_(*command, str(tmp_path / "out")).stdout == f"{run_in(tmp_path / 'out')} is already finished\n"
    other = mecam_(*words, "--minutes", "2", "--out", str(tmp_path / "out"))
    assert other.exit_code == 2
    assert "already holds another run" in other.stderr


@pytest.mark.usefixtures("speed")
def test_a_budget_and_steps_exclude_each_other_on_the_command_line(words: list[str], tmp_path: Path) -> None:
    for steps in (["--steps", "5"], ["--set", "steps=5"]):
        refused = mecam_(*words, *steps, "--minutes", "1", "--out", str(tmp_path))
        assert refused.exit_code == 2
        assert refused.stderr == "mecam: minutes sets the steps; leave out one of minutes and steps\n"
    (recipe := tmp_path / "recipe.toml").write_text("steps = 5\nwarmup = 1\n")
    dry = mecam_("train", str(recipe), *words[1:], "--minutes", "1", "--dry-run", "--out", str(tmp_path / "out"))
    assert dry.exit_code == 0, dry.stderr
    assert " 5 steps" not in dry.stdout


@pytest.mark.usefixtures("speed")
def test_a_dry_run_prints_the_time_and_trains_nothing(words: list[str], images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    short = mecam_(*words, "--steps", "9", "--evaluate-every", "5", "--dry-run", "--out", str(out))
    assert (short.exit_code, out.exists()) == (0, False)
    size = "of 3 x 2 images of 16 pixels"
    assert short.stdout == f"resnet8, all weights: 9 steps {size}, adam: about 0:24, 2.0 s per step\n"
    long = mecam_(*words, "--balanced", "--set", "optimizer_settings.eps=1e-6", "--dry-run", "--out", str(out))
    first, *rest = long.stdout.splitlines()
    assert first.endswith("adam: about 2:47:34, 2.0 s per step. Cheaper:")
    same = f"mecam train --data {images} --backbone resnet8"
    other = "--batch 2 --lr 0.001 --image-size 16 --balanced"
    end = f"--set optimizer_settings.eps=1e-6 --out {out}"
    assert rest == [
        f"  {same} {other} --minutes 60 {end}",
        "      about 1:00:00",
        f"  {same} --steps 500 {other} {end}",
        "      about 16:49",
    ]


def test_the_mecam_fit_that_is_suggested_reads_the_folder_in_the_same_way() -> None:
    recipe = mecam.Recipe(data="my root", backbone="lite0", layout="class/domain", skip_unreadable=True)
    suggested = "mecam fit 'my root' --minutes 15 --skip-unreadable --layout class/domain"
    assert Request._fit(recipe) == suggested
    other = mecam.Recipe(data="root", backbone="lite1", domain_from="exif:Model")
    assert Request._fit(other) == "mecam fit root --minutes 15 --backbone lite1 --domain-from exif:Model"


@pytest.mark.usefixtures("speed")
def test_a_long_run_whose_length_was_not_asked_for_starts_after_a_question(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mecam.cli.train._at_terminal", lambda: True)
    command = [*words, "--out", str(tmp_path)]
    no = mecam_(*command, answer="n\n")
    assert no.exit_code == 1
    assert "5,000 steps of 3 x 2 images of 16 pixels, adam: about 2:47:34, 2.0 s per step. Cheaper:" in no.stderr
    assert "Start this run? --minutes or --steps sets its length [y/N]" in no.stderr
    assert not list(tmp_path.iterdir())
    interrupt_at(monkeypatch, 0)
    for more, asks in ((["--seed", "1"], True), (["--patience", "9"], False), (["--steps", "4000"], False)):
        yes = mecam_(*words, *more, "--out", str(tmp_path / more[0]), answer="y\n")
        assert yes.exit_code == 143  # it began
        assert ("Start this run?" in yes.stderr) == asks
    again = mecam_(*words, "--seed", "1", "--out", str(tmp_path / "--seed"))
    assert (again.exit_code, "Start this run?" in again.stderr) == (143, False), "a resumed run was asked about before"
    monkeypatch.setattr("mecam.cli.train._at_terminal", lambda: False)
    off = mecam_(*words, "--seed", "2", "--out", str(tmp_path / "off"))
    assert (off.exit_code, "Cheaper:" in off.stderr, "Start this run?" in off.stderr) == (143, True, False)


@pytest.mark.usefixtures("speed")
def test_a_batch_that_memory_does_not_hold_is_lowered_and_kept_for_the_resume(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizing, "available_memory", lambda _: 3e6)
    words = ["train", "--data", str(images), "--backbone", "resnet8", "--image-size", "16", "--steps", "5"]
    words += ["--out", str(tmp_path)]
    with monkeypatch.context() as patch:
        interrupt_at(patch, 2)
        stopped = mecam_(*words)
    assert "images per domain take about " in stopped.stderr
    batch = json.loads((run_in(tmp_path) / "run.json").read_text())["recipe"]["batch"]
    assert batch < 32
    monkeypatch.setattr(sizing, "available_memory", lambda _: 3e12)
    assert mecam_(*words).exit_code == 0
    assert RunFolder(run_in(tmp_path)).is_done()
