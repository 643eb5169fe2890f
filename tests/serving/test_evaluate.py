"""`mecam evaluate` on real image files, from Python and as a command."""

import csv
import io
import json
import re
import shutil
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from typer.testing import CliRunner, Result

import mecam
from mecam.cli import app
from mecam.data.domains import DataError
from mecam.data.open import open_data
from mecam.preprocessing import Preprocessing
from mecam.recipe import Recipe
from mecam.runs import RunError
from mecam.serving import Evaluation, TrainedModel, find_images, load_model
from mecam.serving.evaluation import summarize
from mecam.serving.page import LISTED, Mistakes, evaluation_page, wrong_images
from mecam.serving.tally import Tally, wilson
from mecam.splits import mean_interval
from mecam.training import train
from tests.serving.runs import CLASSES, DOMAINS, EACH, write_images

ODD = '<b>"odd" & co'  # the name of a domain


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("data") / "images")


@pytest.fixture(scope="module")
def run(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny = {"backbone": "resnet8", "image_size": 32, "batch": 4, "steps": 20, "evaluate_every": 10, "lr": 1e-3}
    data = open_data(images, cache=tmp_path_factory.mktemp("cache"))
    return train(Recipe(**{"data": str(images), **tiny}), tmp_path_factory.mktemp("run"), device="cpu", data=data).path


@pytest.fixture
def mixed(images: Path, tmp_path: Path) -> Path:
    """Two domains in which some images lie in the wrong folder, and one that cannot be read."""
    root = tmp_path / "mixed"
    for domain, name in (("lab", "lab"), ("home", ODD)):
        shutil.copytree(images / domain, root / name)
    for number in (1, 3, 5):
        (root / "lab" / "red" / f"{number}.png").rename(root / "lab" / "blue" / f"{10 + number}.png")
    (root / ODD / "blue" / "1.png").rename(root / ODD / "red" / "a #1 <i>.png")
    (root / "lab" / "red" / "cut.png").write_bytes(b"\x89PNG\r\n\x1a\n rest is missing")
    return root


def ask(*words: object) -> Result:
    return CliRunner().invoke(app, ["evaluate", *map(str, words), "--device", "cpu"])


def test_the_counts_are_those_of_the_predictions(run: Path, mixed: Path) -> None:
    found = mecam.evaluate(run, mixed)
    assert isinstance(found, Evaluation)
    expected = Counter(
        (one.image.parent.name, one.label, one.image.parts[-3])
        for one in load_model(run).predictions(find_images([mixed]))
        if one.error is None
    )
    assert found.images == expected.total() == 2 * len(CLASSES) * EACH
    for label, row in zip(CLASSES, found.confusion, strict=True):
        assert list(row) == [sum(expected[label, name, d] for d in ("lab", ODD)) for name in CLASSES]
    hits = {d: sum(expected[name, name, d] for name in CLASSES) for d in (ODD, "lab")}
    assert found.accuracy == sum(hits.values()) / found.images
    assert found.interval == wilson(sum(hits.values()), found.images)
    assert [(one.name, one.accuracy, one.images) for one in found.domains] == [
        (name, count / (len(CLASSES) * EACH), len(CLASSES) * EACH) for name, count in hits.items()
    ]
    accuracies = [one.accuracy for one in found.domains]
    assert found.domain_mean == pytest.approx(np.mean(accuracies))
    assert found.domain_interval == mean_interval(accuracies)
    assert found.accuracy < 1
    [message] = found.unreadable
    assert message.startswith(str(mixed / "lab" / "red" / "cut.png"))


def test_one_domain_and_folders_of_classes_have_no_interval_over_domains(run: Path, images: Path) -> None:
    found = mecam.evaluate(load_model(run), str(images / "lab"))
    assert (found.images, found.domains, found.domain_mean, found.domain_interval) == (
        len(CLASSES) * EACH,
        (),
        None,
        None,
    )
    assert "domain" not in str(found)


def test_a_csv_file_gives_what_the_folder_gives(run: Path, images: Path, tmp_path: Path) -> None:
    lines = [f"{file},{file.parent.name},{file.parts[-3]}" for file in find_images([images])]
    (tmp_path / "photos.csv").write_text("\n".join(["path,label,domain", *lines]))
    assert mecam.evaluate(run, tmp_path / "photos.csv") == mecam.evaluate(run, images)


def test_json_has_the_fields(run: Path, mixed: Path) -> None:
    result = ask(run, mixed, "--format", "json", "--quiet")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"mecam: {mixed / 'lab' / 'red' / 'cut.png'} cannot be read")
    found = mecam.evaluate(run, mixed)
    assert json.loads(result.stdout) == json.loads(json.dumps(found.to_dict()))
    assert list(found.to_dict()) == list(Evaluation.__dataclass_fields__)


def test_the_text_has_every_number(run: Path, mixed: Path) -> None:
    result, found = ask(run, mixed), mecam.evaluate(run, mixed)
    assert result.stdout == f"{found}\n"
    low, high = (100 * bound for bound in found.interval)
    number = r"accuracy +{:.1f} %  95 % interval over images: {:.1f} to {:.1f} %"
    assert re.search(number.format(100 * found.accuracy, low, high), result.stdout)
    assert re.search(rf"images +{found.images}  2 classes; not counted: 1 unreadable", result.stdout)
    for domain in ("lab", ODD):
        assert any(line.startswith(f"{domain} ") for line in result.stdout.splitlines())
    assert repr(found).startswith(f"<Evaluation: accuracy {100 * found.accuracy:.1f} % (")
    assert "\n" not in repr(found)


def test_the_wrong_images(run: Path, mixed: Path, tmp_path: Path) -> None:
    file = tmp_path / "new" / "wrong.csv"
    ask(run, mixed, "--wrong", file)
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    found = {one.image: one for one in load_model(run).predictions(find_images([mixed]))}
    expected = [image for image, one in found.items() if one.error is None and one.label != image.parent.name]
    assert sorted(row["image"] for row in rows) == sorted(map(str, expected))
    for row in rows:
        one = found[Path(row["image"])]
        assert (row["label"], row["predicted"], row["domain"]) == (
            one.image.parent.name,
            one.label,
            one.image.parts[-3],
        )
        assert float(row["probability"]) == pytest.approx(one.probability, abs=1e-5)
        for name, share in one.probabilities.items():
            assert float(row[f"probability of {name}"]) == pytest.approx(share, abs=1e-5)
    assert [path.name for path in file.parent.iterdir()] == ["wrong.csv"]


class Page(HTMLParser):
    """The links, anchors and tags of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.add(tag)
        self.links += [given["href"] or ""] if tag == "a" else []
        self.anchors.add(given.get("id") or "")


def test_the_page(run: Path, mixed: Path, tmp_path: Path) -> None:
    file = tmp_path / "pages" / "page.html"
    assert ask(run, mixed, "--out", file).exit_code == 1
    text = file.read_text(encoding="utf-8")
    page, found = Page(text), mecam.evaluate(run, mixed)
    assert not page.tags & {"b", "i", "script", "link"}
    assert text.count('<img src="data:image/jpeg;base64,') == sum(count for *_, count in found.confusions())
    assert text.count("<circle") == len(found.calibration)
    assert sum(one.images for one in found.calibration) == found.images
    assert "&lt;b&gt;" in text
    wrong = [link for link in page.links if not link.startswith("#")]
    assert len(wrong) == found.images - round(found.accuracy * found.images)
    assert all((file.parent / unquote(link)).is_file() for link in wrong)
    inside = {link[1:] for link in page.links if link.startswith("#")}
    assert inside <= page.anchors
    assert len(inside) == 1 + len(found.confusions())


def test_of_many_classes_confusions_are_listed() -> None:
    names = [f"class <{number}>" for number in range(40)]
    tally, mistakes = Tally(40), Mistakes(names)
    for number in range(LISTED + 5):
        tally.add(3, 7, 0.5)
        mistakes.add(3, 7, number / 1000, Path(f"{number}.png"))
    tally.add(1, 1, 0.9)
    found = summarize(names, {"": tally}, unreadable=(), ignored=(), stopped=None)
    assert str(found).splitlines()[-1].split() == ["class", "<3>", "class", "<7>", str(LISTED + 5)]
    text = evaluation_page(found, mistakes, Path("photos"), Path("page.html"))
    assert len(text) < 60_000
    assert "and 5 more" in text
    assert [confidence for confidence, _ in mistakes.kept((3, 7))][:2] == [0.104, 0.103]
    assert len(list(wrong_images(mistakes, lambda _: None, str, ""))) == 2


def test_pictures_go_to_every_confusion_and_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mecam.serving.page.PICTURES", 3)
    mistakes = Mistakes(["a", "b"])
    for number in range(4):
        mistakes.add(0, 1, number / 10, Path(f"{number}.png"))
    mistakes.add(1, 0, 0.1, Path("other.png"))
    _heading, first, second, note = wrong_images(mistakes, lambda _: "AAAA", lambda image: image.name, "")
    assert (first.count("<img"), second.count("<img")) == (2, 1)
    assert first.index("<img") < first.index("3.png")
    assert note == "<p>3 of 5 wrong images have a picture on this page.</p>"


class Broken(nn.Module):
    """Outputs that are not finite for dark images."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight, self.value = nn.Parameter(torch.ones(1)), value

    def forward(self, images: Tensor) -> Tensor:
        logits = images.mean((2, 3)) * self.weight
        return logits.masked_fill(logits.sum(1, keepdim=True) < 0, self.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_outputs_that_are_not_finite_are_an_error(value: float, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number, level in enumerate((255, 255, 0, 255)):
        Image.new("RGB", (8, 8), (level,) * 3).save(tmp_path / "a" / f"{number}.png")
    broken = TrainedModel(Broken(value), ("a", "b", "c"), Preprocessing(8, (0.5,) * 3, (0.5,) * 3), "none")
    with pytest.raises(RunError, match=r"output for .*2\.png is not finite"):
        mecam.evaluate(broken, tmp_path, wrong=tmp_path / "wrong.csv", out=tmp_path / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    with pytest.raises(RunError, match=r"output for picture 1 is not finite"):
        broken.probabilities([np.full((8, 8, 3), level, dtype=np.uint8) for level in (255, 0)])


def test_words_that_are_refused(run: Path, images: Path, tmp_path: Path) -> None:
    unknown = ask(run, images, "--format", "xml")
    assert (unknown.exit_code, "'xml' is not one of 'terminal', 'json'" in unknown.stderr) == (2, True)
    (tmp_path / "lab" / "rde").mkdir(parents=True)
    shutil.copy(images / "lab" / "red" / "1.png", tmp_path / "lab" / "rde")
    refused = ask(run, tmp_path)
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    (tmp_path / "lab" / "rde").rename(tmp_path / "lab" / "red")
    (tmp_path / "lab" / "red" / "1.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"no image of .* can be read: .* is empty"):
        mecam.evaluate(run, tmp_path)


def test_images_are_read_one_batch_at_a_time(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = TrainedModel(Broken(0.0), CLASSES, Preprocessing(8, (0.5,) * 3, (0.5,) * 3), "none")
    alive, most = 0, 0
    read, predicted = TrainedModel._read, TrainedModel._forward

    def counting(self: TrainedModel, image: Path, **options: Any) -> object:
        nonlocal alive, most
        alive += 1
        most = max(most, alive)
        return read(self, image, **options)

    def done(self: TrainedModel, pictures: list[np.ndarray], names: list[str]) -> tuple[Tensor, None]:
        nonlocal alive
        alive -= len(pictures)
        return predicted(self, pictures, names)[0][:, : len(CLASSES)], None

    monkeypatch.setattr(TrainedModel, "_read", counting)
    monkeypatch.setattr(TrainedModel, "_forward", done)
    found = mecam.evaluate(model, images)
    assert found.images == len(DOMAINS) * len(CLASSES) * EACH
    assert most <= 16  # two batches of eight, on a CPU
