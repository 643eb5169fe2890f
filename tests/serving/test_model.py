"""Predictions of a finished run: for any kind of image, in any order and number, as text that programs read."""

import csv
import io
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from mecam.cli import app
from mecam.data import decode as decoding
from mecam.data.domains import DataError
from mecam.data.open import open_data
from mecam.recipe import Recipe
from mecam.runs import RunFolder, find_run
from mecam.serving import TrainedModel, find_images, load_model
from mecam.serving import model as serving_model
from mecam.serving import pictures as serving_pictures
from mecam.training import train
from tests.serving.runs import CLASSES, DOMAINS, EACH, write_images


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("data") / "images")


@pytest.fixture(scope="module")
def run(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny = {"backbone": "resnet8", "image_size": 32, "batch": 4, "steps": 20, "evaluate_every": 10, "lr": 1e-3}
    data = open_data(images, cache=tmp_path_factory.mktemp("cache"))
    return train(Recipe(**{"data": str(images), **tiny}), tmp_path_factory.mktemp("run"), device="cpu", data=data).path


@pytest.fixture(scope="module")
def model(run: Path) -> TrainedModel:
    return load_model(run)


def by_hand(model: TrainedModel, picture: Image.Image) -> torch.Tensor:
    """Probabilities with Pillow, numpy and the description of the preprocessing alone."""
    told = model.preprocessing.describe()
    size = (told["image_size"], told["image_size"])
    pixels = np.asarray(picture.convert("RGB").resize(size, Image.Resampling.BILINEAR)) / 255
    values = (pixels - told["mean"]) / told["std"]
    with torch.no_grad():
        logits: torch.Tensor = model.network(torch.from_numpy(values.transpose(2, 0, 1)[None]).float())
    return logits.softmax(1)[0]


def test_a_model_of_a_method_that_became_an_example_loads(
    model: TrainedModel, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = RunFolder.read_model

    def as_heldout(folder: RunFolder) -> tuple[dict[str, torch.Tensor], Any]:
        weights, facts = read(folder)
        return weights, {**facts, "method": "heldout", "method_settings": {"held": 1}}

    monkeypatch.setattr(RunFolder, "read_model", as_heldout)
    assert list(load_model(run).network.state_dict()) == list(model.network.state_dict())


def test_a_network_whose_constructor_reads_values_loads(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = serving_model.create_network

    def reading(*words: Any, **options: Any) -> Any:
        torch.linspace(0, 1, 3)[1].item()  # as some networks spread their rates of dropped paths
        return create(*words, **options)

    monkeypatch.setattr(serving_model, "create_network", reading)
    assert load_model(run).classes == CLASSES


def test_predictions_are_what_the_described_preprocessing_gives(model: TrainedModel, images: Path) -> None:
    files = find_images([images])
    assert len(files) == len(DOMAINS) * len(CLASSES) * EACH
    for batch in (5, 64):
        found = list(model.predictions(files, batch=batch))
        assert [one.image for one in found] == files
        for one in found:
            with Image.open(one.image) as picture:
                expected = by_hand(model, picture)
            assert one.label == model.classes[int(expected.argmax())]
            assert one.probability == pytest.approx(expected.max().item(), abs=1e-5)
    assert {one.label for one in found} == set(CLASSES)  # colours that a few steps tell apart
    assert np.mean([one.label == one.image.parent.name for one in found]) > 0.9


def test_the_accuracy_of_the_run_is_that_of_its_predictions(model: TrainedModel, images: Path, run: Path) -> None:
    """Training stores images of one size as they are, and resizes in floating point: up to rounding the same."""
    splits = find_run(run).read_result()["splits"].values()
    right = sum(split["accuracy"] * split["images"] for split in splits)
    found = model.predictions(find_images([images]))
    assert sum(one.label == one.image.parent.name for one in found) == pytest.approx(right, abs=1)


def test_every_kind_of_image(model: TrainedModel, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    colour = Image.fromarray(random.integers(0, 256, (50, 30, 3), dtype=np.uint8))
    gray = colour.convert("L")
    gray.save(tmp_path / "gray.png")
    colour.convert("P").save(tmp_path / "palette.png")
    Image.fromarray(np.asarray(gray).astype(np.uint16) * 257).save(tmp_path / "sixteen.png")
    turned = Image.Exif()
    turned[0x0112] = 6  # a viewer turns it by 90 degrees clockwise
    colour.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "rotated.png", exif=turned)
    shown = {"gray.png": gray, "palette.png": colour.convert("P"), "sixteen.png": gray, "rotated.png": colour}
    found = model.predictions([tmp_path / name for name in shown])
    for one, picture in zip(found, shown.values(), strict=True):
        expected = by_hand(model, picture)
        assert one.probability == pytest.approx(expected.max().item(), abs=1e-5), one.image
        assert one.label == model.classes[int(expected.argmax())]


def test_pillows_images_give_what_their_files_give(model: TrainedModel, tmp_path: Path) -> None:
    colour = Image.fromarray(np.random.default_rng(1).integers(0, 256, (50, 30, 4), dtype=np.uint8))
    turned = Image.Exif()
    turned[0x0112] = 6
    colour.save(tmp_path / "a.png", exif=turned)
    with Image.open(tmp_path / "a.png") as opened:
        alone, several = list(model.predictions(opened)), list(model.predictions([opened, tmp_path / "a.png", colour]))
        assert opened.load() is not None  # still the caller's
    [path], [text] = (list(model.predictions(file)) for file in (tmp_path / "a.png", str(tmp_path / "a.png")))
    assert [one.image for one in several] == [opened, tmp_path / "a.png", colour]
    for one in (*alone, *several[:2], text):
        assert one.probabilities == pytest.approx(path.probabilities, abs=1e-6)
    assert several[2].probabilities != pytest.approx(path.probabilities, abs=1e-6)  # it lies on its side
    [refused] = model.predictions(Image.new("F", (4, 4)))
    assert refused.error is not None
    assert refused.error.startswith("the image has floating-point pixels")


def test_the_probabilities_of_all_classes(run: Path, model: TrainedModel, images: Path) -> None:
    file = images / "lab" / "red" / "1.png"
    with Image.open(file) as picture:
        expected = dict(zip(model.classes, by_hand(model, picture).tolist(), strict=True))
    asked = ["predict", str(run), str(file), "--probabilities"]
    [row] = csv.DictReader(io.StringIO(CliRunner().invoke(app, asked).stdout))
    assert list(row) == ["image", "class", "probability", "probability of blue", "probability of red"]
    assert {name: float(row[f"probability of {name}"]) for name in CLASSES} == pytest.approx(expected, abs=1e-5)
    assert row["probability"] == row[f"probability of {row['class']}"]
    [entry] = json.loads(CliRunner().invoke(app, [*asked, "--format", "json"]).stdout)
    assert entry["probabilities"] == pytest.approx(expected, abs=1e-5)
    assert list(entry) == ["image", "class", "probability", "probabilities"]


def test_csv_and_json_name_what_cannot_be_read_and_continue(run: Path, images: Path, tmp_path: Path) -> None:
    folder = tmp_path / 'a "folder", with signs'
    (folder / "deep").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    for name in ("b.png", "deep/a.PNG", ".hidden/c.png"):
        (folder / name).write_bytes((images / "lab" / "red" / "1.png").read_bytes())
    (folder / "notes.txt").write_text("no image")
    (folder / "cut.jpg").write_bytes((images / "lab" / "red" / "0.jpg").read_bytes()[:200])
    (folder / "loop").symlink_to(folder)
    asked = [str(run), str(folder), str(tmp_path / "gone.png"), str(images / "lab" / "blue" / "0.jpg")]
    good = [str(folder / "b.png"), str(folder / "deep" / "a.PNG"), asked[-1]]
    answers = {form: CliRunner().invoke(app, ["predict", *asked, "--format", form]) for form in ("csv", "json")}
    rows = list(csv.DictReader(io.StringIO(answers["csv"].stdout)))
    objects = json.loads(answers["json"].stdout)
    assert [row["image"] for row in rows] == [one["image"] for one in objects] == good
    assert [(row["class"], float(row["probability"])) for row in rows] == [
        (one["class"], one["probability"]) for one in objects
    ]
    assert rows[0]["probability"] == rows[1]["probability"]  # the same picture
    for answer in answers.values():
        assert answer.exit_code == 1
        cut, gone = answer.stderr.splitlines()
        assert cut.startswith(f"mecam: {folder / 'cut.jpg'} cannot be read as an image")
        assert gone == f"mecam: there is no file {tmp_path / 'gone.png'}"


def test_no_readable_image_is_still_a_table(run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.png").write_bytes(b"")
    answer = CliRunner().invoke(app, ["predict", str(run), str(tmp_path), "--format", "json"])
    assert (answer.exit_code, json.loads(answer.stdout)) == (1, [])
    unknown = CliRunner().invoke(app, ["predict", str(run), str(tmp_path), "--format", "xml"])
    assert (unknown.exit_code, unknown.stdout) == (2, "")
    assert "'xml' is not one of 'csv', 'json'" in unknown.stderr
    (tmp_path / "empty.png").unlink()
    with pytest.raises(DataError, match="there are no images below"):
        find_images([tmp_path])


def test_one_of_several_runs_must_be_named(run: Path, tmp_path: Path) -> None:
    assert find_run(run.parent).path == run
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    with pytest.raises(RuntimeError, match="holds 2 runs; give one of them"):
        find_run(tmp_path)


@pytest.mark.attack("Untrusted files")
def test_large_images_are_not_decoded_at_the_same_time(
    model: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that many small files of many pixels take the memory of one."""
    monkeypatch.setattr(decoding, "PIXELS_AT_ONCE", 2 * 20 * 20)
    monkeypatch.setattr(serving_model, "available_cores", lambda: 8)
    for number in range(12):
        side = 100 if number % 4 == 1 else 20
        Image.new("RGB", (side, side), (number, 0, 0)).save(tmp_path / f"{number:02}.webp", lossless=True)
    original, lock, now, most = serving_pictures.decode, threading.Lock(), [], []

    def decode(source: Any, *, name: str, max_pixels: int) -> Any:
        with lock:
            now.append(Path(name).stem)
            most.append(list(now))
        time.sleep(0.002)
        pixels = original(source, name=name, max_pixels=max_pixels)
        with lock:
            now.remove(Path(name).stem)
        return pixels

    monkeypatch.setattr(serving_pictures, "decode", decode)
    assert [one.error for one in model.predictions(find_images([tmp_path]))] == [None] * 12
    assert max(map(len, most)) == 2
    assert all(len(names) == 1 for names in most if {"01", "05", "09"} & set(names))
