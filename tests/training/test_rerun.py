"""A run once more: the same bytes, or the first thing that differs."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from mecam.data.shapes import ShapesSet, shapes
from mecam.recipe import Recipe
from mecam.runs import RunError, RunFolder
from mecam.training import environment, train
from mecam.training.rerun import Comparison, _expected, rerun
from tests.training.pixels import with_pixels

SMALL = {"target": "sketch", "steps": 4, "evaluate_every": 2, "batch": 2, "image_size": 8}


@pytest.fixture(scope="module")
def data() -> ShapesSet:
    return shapes(per_class=2)


@pytest.fixture(scope="module")
def run(data: ShapesSet, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    recipe = Recipe(**{**SMALL, "optimizer": "mecam", "averaging": "swad", "dropout": 0.1, "track": 2})
    return train(recipe, tmp_path_factory.mktemp("runs"), device="cpu", data=data)


@pytest.mark.attack("What is promised bit for bit")
def test_the_same_recipe_gives_the_same_bytes(run: RunFolder, data: ShapesSet, tmp_path: Path) -> None:
    torch.manual_seed(123)  # whatever state the process is in
    found = rerun(run, tmp_path, device="cpu", data=data)
    assert found.is_same
    assert found.surroundings == ()
    assert found.lines() == ["the same bytes: records, weights, predictions and result"]
    assert found.again.path.parent == tmp_path


@pytest.mark.attack("Reruns")
def test_the_first_differences_are_reported(run: RunFolder, data: ShapesSet, tmp_path: Path) -> None:
    other = with_pixels(data, (np.ascontiguousarray(images[..., ::-1]) for images in data.pixels))
    found = rerun(run, tmp_path, device="cpu", data=other)
    told = dict(line.split(": ", 1) for line in found.differences)
    assert list(told) == [
        "records.jsonl",
        "model.safetensors",
        "predictions.safetensors",
        "tracking.jsonl",
        "done.json",
    ]
    records = [
        json.loads((folder.path / "records.jsonl").read_bytes().splitlines()[0]) for folder in (run, found.again)
    ]
    loss, another = (record["splits"]["art out"]["loss"] for record in records)
    assert told["records.jsonl"] == f"line 1: splits.art out.loss is {loss} there and {another} here"
    assert " there and " in told["model.safetensors"]
    assert "the first of " in told["model.safetensors"]
    assert found.inputs == (f'data is "{data.fingerprint}" there and "{other.fingerprint}" here',)
    assert found.lines()[0] == f"the data or the weights differ: {found.inputs[0]}"
    assert found.lines()[1].startswith("different: records.jsonl: line 1")


@pytest.mark.attack("Reruns")
def test_another_environment_is_reported(
    run: RunFolder, data: ShapesSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = environment.describe
    monkeypatch.setattr(environment, "describe", lambda: {**describe(), "numpy": "9.9"})
    found = rerun(run, tmp_path, device="cpu", data=data)
    assert found.is_same
    assert found.surroundings == (f'numpy is "{np.__version__}" there and "9.9" here',)


@pytest.mark.attack("What is promised bit for bit")
def test_other_circumstances_explain_other_bytes(run: RunFolder) -> None:
    here, elsewhere = {"threads": 1, "instruction_set": "AVX2"}, {"threads": 1, "instruction_set": "AVX512"}
    expected = _expected([here, elsewhere], [here])
    assert expected == "instruction_set=AVX2, then instruction_set=AVX512 there and instruction_set=AVX2 here"
    assert Comparison(run, (), (), expected).lines() == ["the same bytes: records, weights, predictions and result"]
    assert Comparison(run, ("done.json: x",), (), expected).lines() == [
        "different: done.json: x",
        f"a possible cause: {expected}; results may differ in the last bits, and training amplifies that",
    ]
    assert _expected([here], [{**here, "python": "9.9", "source": "0"}]) == "", "no circumstances of the last bits"


def test_circumstances_that_differ_are_no_alarm_when_the_bytes_are_the_same(
    run: RunFolder, data: ShapesSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "instruction_set", lambda: "another")
    found = rerun(run, tmp_path, device="cpu", data=data)
    assert found.expected.endswith(" there and instruction_set=another here")
    assert found.is_same
    assert found.lines()[-1] == "the same bytes: records, weights, predictions and result"


def test_as_many_threads_as_the_run_had(run: RunFolder, data: ShapesSet, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        found = rerun(run, tmp_path, device="cpu", data=data)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
    assert found.again.read_run()["environment"]["threads"] == before


def test_runs_that_cannot_be_repeated(run: RunFolder, data: ShapesSet, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="has that run already, finished; give another --out"):
        rerun(run, run.path.parent, device="cpu", data=data)
    unfinished = RunFolder(tmp_path / "unfinished")
    unfinished.begin(run.read_run()["recipe"], {}, run_id="x")
    with pytest.raises(RunError, match="is not finished"):
        rerun(unfinished, tmp_path, device="cpu", data=data)
    foreign = RunFolder(tmp_path / "foreign")
    foreign.begin({"telescope": 1}, {}, run_id="x")
    with pytest.raises(RunError, match=r"run\.json cannot be used: .*another version of mecam \(telescope\)"):
        rerun(foreign, tmp_path, device="cpu", data=data)


def test_what_a_run_records_of_its_surroundings(run: RunFolder) -> None:
    found = run.read_run()
    assert found["recipe"]["seed"] == 0
    surroundings = found["environment"]
    assert surroundings["torch"] == torch.__version__
    assert surroundings["numpy"] == np.__version__
    assert surroundings["source"] == environment.source()
    for name in ("mecam", "commit", "python", "system", "processor", "cores", "threads", "device", "precision"):
        assert name in surroundings


def test_the_commit_of_a_checkout(tmp_path: Path) -> None:
    package, git = tmp_path / "src" / "mecam", tmp_path / ".git"
    package.mkdir(parents=True)
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert environment.commit(package) is None, "nothing is committed yet"
    (git / "packed-refs").write_text(f"# pack-refs\n{'b' * 40} refs/heads/other\n{'a' * 40} refs/heads/main\n")
    assert environment.commit(package) == "a" * 40
    (git / "refs" / "heads" / "main").write_text("c" * 40 + "\n")
    assert environment.commit(package) == "c" * 40
    (git / "HEAD").write_text("d" * 40 + "\n")
    assert environment.commit(package) == "d" * 40
    work = tmp_path / "work"
    (work / "src" / "mecam").mkdir(parents=True)
    (git / "worktrees" / "work").mkdir(parents=True)
    (work / ".git").write_text(f"gitdir: {git / 'worktrees' / 'work'}\n")
    (git / "worktrees" / "work" / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "worktrees" / "work" / "commondir").write_text("../..\n")
    assert environment.commit(work / "src" / "mecam") == "c" * 40


def test_the_digest_of_the_code_changes_with_it(tmp_path: Path) -> None:
    seen = set()
    for number, content in enumerate((b"a", b"b")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "x.py").write_bytes(content)
        seen.add(environment.source(folder))
    assert len(seen) == 2
