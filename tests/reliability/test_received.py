"""Run folders from someone else: sealed and summed as ours are, and made to harm whoever looks at them."""

import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from mecam.cli import app
from mecam.runs import RunFolder, checkpoint
from mecam.runs._tensors import pack, unpack
from mecam.storage.checksums import digest, seal
from tests.serving.runs import TINY, write_images

pytestmark = pytest.mark.attack("Untrusted files")
CODES = (0, 1, 2)  # never a traceback


class Place:
    """A finished run on data in a folder, and where users of it work."""

    def __init__(self, root: Path, images: Path, out: Path) -> None:
        self.root, self.images, self.out = root, images, out
        (self.path,) = (file.parent for file in out.glob("*/run.json"))

    def copy(self, to: Path) -> Path:
        """A copy of the run in a folder of runs, beside an intact one."""
        shutil.copytree(self.path, to / "runs" / "intact")
        return Path(shutil.copytree(self.path, to / "runs" / self.path.name))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("place")
    images = write_images(root / "images")
    with pytest.MonkeyPatch.context() as surroundings:
        surroundings.setenv("MECAM_CACHE", str(root / "cache"))
        said = mecam("train", "--data", images, "--target", "lab", *TINY, "--out", root / "out")
        assert said[0] == 0, said[1]
        yield Place(root, images, root / "out")


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Someone who has never used the data of the run."""
    monkeypatch.setenv("MECAM_CACHE", str(tmp_path / "cache"))


def mecam(*words: object) -> tuple[int, str]:
    """Exit code, and what was printed in all; a traceback is raised."""
    result = CliRunner().invoke(app, list(map(str, words)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def change(path: Path, /, **changes: Any) -> None:
    """Change entries of run.json and done.json, and fit all checksums."""
    folder = RunFolder(path)
    done, described = json.loads(folder.done_file.read_bytes()), json.loads(folder.run_file.read_bytes())
    del done["checksum"], described["checksum"]
    described["recipe"] |= changes.pop("recipe", {})
    described |= changes.pop("run", {})
    for name, value in changes.items():
        done["result"][name] = value
    reseal(path, described, done)


def reseal(run: Path, described: dict[str, Any], done: dict[str, Any]) -> None:
    folder = RunFolder(run)
    folder.run_file.write_bytes(seal(described))
    for name in done["sha256"]:
        done["sha256"][name] = digest((run / name).read_bytes())
    folder.done_file.write_bytes(seal(done))


def refit(run: Path, file: str, content: bytes) -> None:
    """Replace a file, and its checksum."""
    (run / file).write_bytes(content)
    change(run)


@pytest.mark.usefixtures("stranger")
@pytest.mark.parametrize("command", ["report", "rerun", "curvature", "spectrum", "landscape", "soup"])
def test_a_path_in_a_run_is_opened_by_consent_alone(place: Place, command: str, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "made")
    given = [place.path, *(out if command in ("report", "landscape", "soup", "rerun") else ())]
    extra = ["--interpolate"] if command == "soup" else ["--steps", 3] if command == "landscape" else []
    code, said = mecam(command, *given, *extra)
    assert f"give --data {place.images}" in " ".join(said.split())
    assert code == (0 if command == "report" else 2)
    assert not (tmp_path / "cache" / "stores").exists(), "nothing is packed"
    shutil.rmtree(tmp_path / "made", ignore_errors=True)
    code, said = mecam(command, *given, *extra, "--data", place.images)
    assert (code, "give --data" in said) == (0, False)


@pytest.mark.parametrize("kind", ["fifo", "folder", "content"])
def test_data_that_the_user_has_not_used_is_not_opened(place: Place, kind: str, tmp_path: Path) -> None:
    """Also a path that was used, for a run with another fingerprint."""
    message = "which you have not opened here with this content"
    run, other = place.copy(tmp_path), tmp_path / "private.csv"
    if kind == "fifo":
        os.mkfifo(other)
        message = "there is no such table"
    elif kind == "folder":
        other = write_images(tmp_path / "private")
    else:
        other = place.images
    change(run, recipe={"data": str(other)}, run={"fingerprints": {"data": "0" * 32, "weights": None}}, data="0" * 32)
    code, said = mecam("report", run, "--out", tmp_path / "page.html")
    assert code == 0
    assert message in " ".join(said.split())


@pytest.mark.parametrize("command", ["rerun", "soup"])
def test_a_weights_file_in_a_run_is_opened_by_consent_alone(place: Place, command: str, tmp_path: Path) -> None:
    run, fifo = place.copy(tmp_path), tmp_path / "weights.pth"
    os.mkfifo(fifo)
    change(run, recipe={"weights": str(fifo)})
    extra = ["--interpolate"] if command == "soup" else []
    code, said = mecam(command, run, "--out", tmp_path / "made", *extra)
    assert (code, f"if you trust it, give --weights {fifo}" in " ".join(said.split())) == (2, True)


FILES = ("run.json", "done.json", "records.jsonl", "sessions.jsonl", "model.safetensors", "predictions.safetensors",
         "timing.json", "curvature.json", "landscape.json", "tracking.jsonl")  # fmt: skip
WAYS = ("link", "fifo", "device", "folder", "huge", "nested")


def put(file: Path, way: str) -> None:
    content = file.read_bytes() if file.exists() else b"{}"
    file.unlink(missing_ok=True)
    if way == "link":
        outside = file.parent.parent.parent / f"outside-{file.name}"
        outside.write_bytes(content)
        file.symlink_to(outside)
    elif way == "fifo":
        os.mkfifo(file)
    elif way == "device":
        file.symlink_to("/dev/zero")
    elif way == "folder":
        file.mkdir()
    elif way == "huge":
        with file.open("wb") as opened:
            opened.truncate(1 << 43)
    else:
        file.write_bytes(b'{"step": ' + b"[" * 200_000)


@pytest.mark.parametrize(("name", "way"), [(name, WAYS[place % len(WAYS)]) for place, name in enumerate(FILES)])
def test_a_file_that_is_none_of_ours_is_one_line(place: Place, name: str, way: str, tmp_path: Path) -> None:
    """The intact run beside it is in the table, and nothing else is read. All ways for all files: make torture."""
    look(place, name, way, tmp_path)


def look(place: Place, name: str, way: str, tmp_path: Path) -> None:
    run = place.copy(tmp_path)
    put(run / name, way)
    code, said = mecam("table", tmp_path / "runs", "--format", "json")
    assert code == 0
    assert json.loads(said[said.index("[\n") :])[0]["runs"] == 1
    for words in (
        ("verify", run),
        ("report", tmp_path / "runs", "--out", tmp_path / "a.html"),
        ("report", run, "--out", tmp_path / "b.html"),
        ("predict", run, place.images / "lab" / "red" / "0.jpg"),
    ):
        code, said = mecam(*words)
        assert code in CODES
        if name in ("run.json", "done.json", "records.jsonl", "model.safetensors") and words[0] == "verify":
            assert (code, name in said) == (1, True)


VALUES: dict[str, Any] = {
    "accuracy 999": {"target_accuracy": 999},
    "accuracy below 0": {"target_accuracy": -0.1},
    "accuracy NaN": {"target_accuracy": float("nan")},
    "accuracy in words": {"target_accuracy": "0.9"},
    "accuracy true": {"target_accuracy": True},
    "accuracy in a list": {"target_accuracy": [0.9]},
    "no accuracy": {"target_accuracy": None},
    "accuracy of many digits": {"target_accuracy": 10**400},
    "step in words": {"selected_step": "<b>1</b>"},
    "step below 0": {"selected_step": -1},
    "no splits": {"splits": {}},
    "splits in a list": {"splits": [1]},
    "a split of no part": {"splits": {"lab of": {"accuracy": 1.0, "loss": 1.0, "images": 1}}},
    "metrics in a list": {"splits": {"lab in": [1]}},
    "accuracy of a split": {"splits": {"lab in": {"accuracy": 7, "loss": 1.0, "images": 1}}},
    "images of a split": {"splits": {"lab in": {"accuracy": 1.0, "loss": 1.0, "images": -5}}},
    "recall": {"splits": {"lab in": {"accuracy": 1.0, "loss": 1.0, "images": 5, "recall": [7, "x"]}}},
    "a soup of a number": {"soup": 5},
    "image_size 60000": {"recipe": {"image_size": 60000}},
    "steps in words": {"recipe": {"steps": "many"}},
    "a target that is a list": {"recipe": {"target": ["lab"]}},
    "settings that are a list": {"recipe": {"optimizer_settings": [1]}},
    "seed below 0": {"recipe": {"seed": -1}},
    "lr NaN": {"recipe": {"lr": float("nan")}},
    "an environment that is a list": {"run": {"environment": [1]}},
    "fingerprints in words": {"run": {"fingerprints": "all"}},
    "an id of 1 MB": {"run": {"id": "x" * 1_000_000}},
}
HARMLESS = ("no splits", "an environment that is a list", "fingerprints in words", "an id of 1 MB")


@pytest.fixture(scope="module")
def changed(place: Place, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder with an intact run and one copy of it per value, and what its table says of them."""
    runs = tmp_path_factory.mktemp("changed")
    shutil.copytree(place.path, runs / "a run that is intact")
    for value, changes in VALUES.items():
        change(Path(shutil.copytree(place.path, runs / value)), **changes)
    code, said = mecam("table", runs, "--format", "json")
    assert code == 0
    lines, table = said[: said.index("[\n")].splitlines(), said[said.index("[\n") :]
    assert json.loads(table)[0]["runs"] == 1
    assert all(line.startswith("mecam: ") for line in lines)
    assert any(f"{1 + len(HARMLESS)} folders hold the same run: a run that is intact" in line for line in lines)
    assert mecam("report", runs, "--out", runs.with_suffix(".html"))[0] in CODES
    return runs, lines


@pytest.mark.parametrize("value", VALUES)
def test_values_that_no_training_writes_are_one_line(
    place: Place, changed: tuple[Path, list[str]], value: str, tmp_path: Path
) -> None:
    runs, lines = changed
    assert any(f"{runs / value} is left out" in line for line in lines) is (value not in HARMLESS)
    for words in (
        ("report", runs / value, "--out", tmp_path / "page.html"),
        ("curvature", runs / value),
        ("verify", runs / value),
        ("predict", runs / value, place.images / "lab" / "red" / "0.jpg"),
    ):
        assert mecam(*words)[0] in CODES


FACTS: dict[str, dict[str, Any]] = {
    "image_size 60000": {"image_size": 60000},
    "image_size in words": {"image_size": "32"},
    "10⁹ domains": {"domains": 10**9},
    "10⁹ domains of DANN": {"domains": 10**9, "method": "dann"},
    "another network": {"backbone": "resnet50"},
    "a network that is none": {"backbone": "../../etc"},
    "a network that is a list": {"backbone": ["resnet8"]},
    "a method that is none": {"method": "os.system"},
    "settings that are none": {"method_settings": {"weights": "/etc/passwd"}},
    "classes in words": {"classes": "ab"},
    "no classes": {"classes": []},
    "classes that are numbers": {"classes": [1, 2]},
    "more classes": {"classes": [f"c{number}" for number in range(50_000)]},
    "mean in words": {"mean": ["NaN"] * 3},
    "mean 1e300": {"mean": [1e300] * 3},
    "std 0": {"std": [0, 0, 0]},
    "two means": {"mean": [0.5, 0.5]},
    "another filter": {"interpolation": "__class__"},
    "a network of timm of any size": {"architecture": "vit_giant_patch14_224", "architecture_settings": {}},
}


@pytest.mark.parametrize("fact", FACTS)
def test_facts_of_a_model_that_no_training_writes_are_one_line(place: Place, fact: str, tmp_path: Path) -> None:
    run = place.copy(tmp_path)
    tensors, facts = unpack((run / "model.safetensors").read_bytes())
    refit(run, "model.safetensors", pack(tensors, {**facts, **FACTS[fact]}))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for words in (("predict", run, place.images / "lab" / "red" / "0.jpg"), ("export", run, "--out", tmp_path / "e")):
        code, said = mecam(*words)
        assert code == 2
        assert said.startswith("mecam: ")
        assert len(said.splitlines()) == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "kB"


@pytest.mark.parametrize("largest", [2**62, -1])
def test_predictions_of_classes_that_are_none(place: Place, largest: int, tmp_path: Path) -> None:
    run = place.copy(tmp_path)
    columns, _ = unpack((run / "predictions.safetensors").read_bytes())
    columns["label"][0] = largest
    refit(run, "predictions.safetensors", pack(columns))
    for what in (run, tmp_path / "runs"):
        code, said = mecam("report", what, "--out", tmp_path / "page.html")
        assert code in (0, 2)
        assert "predictions.safetensors" in said


@pytest.mark.parametrize("line", [
    b'{"step": 0, "splits": {"lab in": {"accuracy": 999, "loss": 1}}}\n',
    b'{"step": 0, "splits": {"lab in": {"accuracy": NaN, "loss": "x"}}}\n',
    b'{"step": 0, "splits": 7}\n',
    b'{"step": 0}\n',
    b'{"step": -9223372036854775809, "splits": {}}\n',
    b"[]\n",
])  # fmt: skip
def test_records_that_no_training_writes(place: Place, line: bytes, tmp_path: Path) -> None:
    run = place.copy(tmp_path)
    refit(run, "records.jsonl", line)
    for words in (
        ("table", tmp_path / "runs", "--accuracy", "second-half"),
        ("report", tmp_path / "runs", "--out", tmp_path / "a.html"),
        ("report", run, "--out", tmp_path / "b.html"),
    ):
        code, said = mecam(*words)
        assert code in CODES
        assert len(said.encode()) < 1 << 16


@pytest.mark.parametrize("line", [b'{"step": 0, "f": "1"}\n', b'{"step": 0, "telescope": 1}\n', b'{"step": 0}\n'])
def test_tracked_records_that_no_training_writes(place: Place, line: bytes, tmp_path: Path) -> None:
    run = place.copy(tmp_path)
    (run / "tracking.jsonl").write_bytes(line)
    done = json.loads((run / "done.json").read_bytes())
    done["sha256"]["tracking.jsonl"] = ""
    (run / "done.json").write_bytes(seal({name: value for name, value in done.items() if name != "checksum"}))
    change(run)
    code, said = mecam("curvature", run, "--images", 4)
    assert (code, "tracking.jsonl does not hold the records of a tracked run" in " ".join(said.split())) == (2, True)


def test_a_landscape_that_is_a_fifo_is_refused(place: Place, tmp_path: Path) -> None:
    run = place.copy(tmp_path)
    for earlier in run.glob("landscape-*.npz"):
        earlier.unlink()
    words = ("landscape", run, "--steps", 2, "--images", 4, "--dimensions", 1, "--out", tmp_path / "out")
    assert mecam(*words)[0] == 0
    (raw,) = run.glob("landscape-*.npz")
    raw.unlink()
    os.mkfifo(raw)
    code, said = mecam(*words)
    assert (code, raw.name in said) == (2, True)


def without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda done: done["sha256"].pop(name)


@pytest.mark.parametrize(
    "take",
    [
        lambda done: done.pop("sha256"),
        lambda done: done.update(sha256={}),
        lambda done: done.update(sha256=[]),
        lambda done: done.update(sha256={"run.json": None}),
        *map(without, ("run.json", "records.jsonl", "model.safetensors", "predictions.safetensors")),
    ],
)
def test_checksums_cannot_be_taken_out(place: Place, take: Callable[[dict[str, Any]], Any], tmp_path: Path) -> None:
    run = place.copy(tmp_path)
    done = json.loads((run / "done.json").read_bytes())
    del done["checksum"]
    take(done)
    (run / "done.json").write_bytes(seal(done))
    code, said = mecam("verify", tmp_path / "runs")
    assert (code, "intact runs: 1, damaged: 1" in said) == (1, True)
    code, said = mecam("table", tmp_path / "runs", "--format", "json")
    assert (code, said.count("is left out")) == (0, 1)


@pytest.mark.parametrize("name", ["run.json", "done.json", "sessions.jsonl"])
def test_a_seal_cannot_be_taken_out(place: Place, name: str, tmp_path: Path) -> None:
    run = place.copy(tmp_path)
    lines = [json.loads(line) for line in (run / name).read_text().splitlines()] if name.endswith("l") else []
    values = lines or [json.loads((run / name).read_bytes())]
    for value in values:
        del value["checksum"]
    (run / name).write_text("".join(json.dumps(value) + "\n" for value in values))
    code, said = mecam("verify", run)
    assert (code, name in said) == (1, True)


@pytest.mark.parametrize("name", ["log.txt", "bench.log"])
@pytest.mark.parametrize("way", ["link", "fifo"])
def test_a_log_does_not_lead_elsewhere(name: str, way: str, tmp_path: Path) -> None:
    small = ("--set", "batch=2", "--set", "image_size=8", "--set", "evaluate_every=1", "--steps", 1)
    bench = ("bench", "--target", "art", "--seeds", 0, "--workers", 1, *small, "--out", tmp_path / "out")
    (plan,) = (line for line in mecam(*bench, "--dry-run")[1].splitlines() if "art-erm" in line)
    run_id = next(word for word in plan.split() if "art-erm" in word)
    log = tmp_path / "out" / (run_id if name == "log.txt" else "") / name
    log.parent.mkdir(parents=True)
    mine = tmp_path / "mine"
    mine.write_text("mine")
    if way == "link":
        log.symlink_to(mine)
    else:
        os.mkfifo(log)
    code, said = mecam(*bench)
    assert code != 0
    assert str(log) in said
    assert mine.read_text() == "mine"


def unfinished(place: Place, to: Path) -> RunFolder:
    folder = RunFolder(place.copy(to))
    folder.done_file.unlink()
    state = {"step": 1, "best": {"step": 1, "weights": {"w": torch.ones(1)}}, "facts": {}}
    checkpoint.save(
        folder.checkpoint_folder, {"run": digest(folder.run_file.read_bytes()), "before": {}, "state": state}
    )
    return folder


def test_a_checkpoint_that_is_a_link_is_refused(place: Place, tmp_path: Path) -> None:
    folder = unfinished(place, tmp_path)
    elsewhere = tmp_path / "elsewhere"
    folder.checkpoint_folder.rename(elsewhere)
    (elsewhere / ".mecam-0.part").touch()
    (elsewhere / "tensors-000009.safetensors").touch()
    before = sorted(elsewhere.iterdir())
    folder.checkpoint_folder.symlink_to(elsewhere)
    for words in (("predict", folder.path, place.images), ("report", folder.path, "--out", tmp_path / "page.html")):
        code, said = mecam(*words)
        assert (code, "checkpoint is a link" in " ".join(said.split())) == (2, True)
    shutil.rmtree(folder.path.with_name("intact"))
    code, said = mecam("train", "--data", place.images, "--target", "lab", *TINY, "--out", folder.path.parent)
    assert (code, "checkpoint is a link" in " ".join(said.split())) == (2, True)
    assert sorted(elsewhere.iterdir()) == before


@pytest.mark.parametrize("tree", [
    b"[" * 200_000,
    b'{"dict": [["step", 1], ["run", {"tensor": "nothing"}]]}',
    b'{"strided": ["state", [1, 99999999999]]}',
    b'{"eval": "1"}',
    b'{"int": "zz"}',
    b'{"array": 5}',
    b'{"dict": [[{"tuple": [{"dict": []}]}, 1]]}',
])  # fmt: skip
def test_trees_of_a_checkpoint_that_no_save_writes(place: Place, tree: bytes, tmp_path: Path) -> None:
    folder = unfinished(place, tmp_path)
    (file,) = folder.checkpoint_folder.glob("tree-*")
    file.write_bytes(tree)
    manifest = folder.checkpoint_folder / "manifest.json"
    parts = json.loads(manifest.read_text())["parts"]
    parts["tree"] |= {"bytes": len(tree), "sha256": digest(tree)}
    manifest.write_text(json.dumps({"parts": parts, "sha256": digest(checkpoint._canonical(parts))}))
    for words in (("predict", folder.path, place.images), ("report", folder.path, "--out", tmp_path / "page.html")):
        code, said = mecam(*words)
        assert (code, len(said.splitlines())) == (2, 1)
