"""The run folder: begun once, resumed after anything, finished last."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from mecam.runs import ClaimedError, RunError, RunFolder, claim
from mecam.runs.timing import add_timing
from mecam.storage import claims

RECIPE: dict[str, Any] = {"data": "shapes", "target": None, "optimizer": {"name": "mecam", "betas": (0.9, 0.999)}}
ENVIRONMENT = {"python": "3.11"}
LIGHT = """
import sys
from mecam.runs import RunFolder
folder = RunFolder(sys.argv[1])
print(folder.read_result(), len(folder.read_records()), folder.read_run()["id"], folder.is_done())
assert "torch" not in sys.modules
"""


def begun(path: Path) -> RunFolder:
    folder = RunFolder(path)
    assert folder.begin(RECIPE, ENVIRONMENT, run_id="some-id") is None
    return folder


def finished(path: Path) -> RunFolder:
    folder = begun(path)
    folder.append({"step": 0, "loss": 1.0})
    folder.save_checkpoint({"step": 0})
    folder.write_model({"w": torch.ones(2)})
    folder.finish({"accuracy": 0.5, "loss": float("inf")})
    return folder


def test_a_run_reports_what_it_is(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "out" / "some-id")
    assert not folder.exists()
    folder.begin(RECIPE, ENVIRONMENT, run_id="some-id")
    assert folder.exists()
    expected = {"id": "some-id", "recipe": json.loads(json.dumps(RECIPE)), "environment": ENVIRONMENT}
    assert folder.read_run() == expected
    before = folder.run_file.read_bytes()
    folder.begin(RECIPE, {"python": "3.12"}, run_id="some-id")
    assert folder.run_file.read_bytes() == before  # written once


def test_a_run_resumes_from_its_checkpoint_and_makes_later_records_again(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    for step in (0, 100, 200):
        folder.append({"step": step, "loss": 1.0})
        if step == 100:
            folder.save_checkpoint({"step": 150, "weights": torch.ones(2), "betas": (0.9, 0.999)})
    with folder.records_file.open("a") as records:
        records.write('{"step": 300, "lo')
    again = RunFolder(tmp_path)
    state = again.begin(RECIPE, ENVIRONMENT, run_id="some-id")
    assert state is not None
    assert (state["step"], state["betas"]) == (150, (0.9, 0.999))
    assert torch.equal(state["weights"], torch.ones(2))
    assert [record["step"] for record in again.read_records()] == [0, 100]
    assert folder.records_file.read_bytes().endswith(b"}\n")


def test_a_run_without_a_checkpoint_starts_over(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    folder.append({"step": 0})
    (tmp_path / ".mecam-0123456789abcdef.part").touch()
    assert folder.begin(RECIPE, ENVIRONMENT, run_id="some-id") is None
    assert folder.read_records() == []
    folder.append({"step": 0})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["records.jsonl", "run.json", "sessions.jsonl"]


def test_another_recipe_is_refused_with_the_difference_and_the_ways_out(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    folder.append({"step": 0})
    other = {**RECIPE, "data": "PACS", "optimizer": {"name": "adam", "betas": (0.9, 0.999)}}
    with pytest.raises(RunError) as refusal:
        folder.begin(other, ENVIRONMENT, run_id="other-id")
    assert str(refusal.value) == (
        f'{tmp_path} holds a run of another recipe: data is "shapes" there and "PACS" here; optimizer.name is "mecam" '
        'there and "adam" here. Give another --out, or remove that folder to start over'
    )
    assert folder.read_records() == [{"step": 0}]
    many = {**RECIPE, **{f"option {i}": i for i in range(9)}}
    with pytest.raises(RunError, match=r"option 4 is null there and 4 here; and 4 more\. Give"):
        folder.begin(many, ENVIRONMENT, run_id="other-id")
    finished_folder = finished(tmp_path / "finished")
    with pytest.raises(RunError, match="another recipe"):
        finished_folder.begin(other, ENVIRONMENT, run_id="other-id")


def test_lists_and_tuples_and_nan_are_no_difference(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.begin({"a": (1, 2), "b": float("nan")}, {}, run_id="x")
    folder.begin({"b": float("nan"), "a": [1, 2]}, {}, run_id="x")
    with pytest.raises(RunError, match=r"a is \[1, 2\] there and \[1, 3\] here"):
        folder.begin({"a": [1, 3], "b": float("nan")}, {}, run_id="x")


def test_leftovers_of_a_run_without_run_json_are_refused(tmp_path: Path) -> None:
    for name in ("sessions.jsonl", "records.jsonl", "model.safetensors", "done.json", "checkpoint"):
        (tmp_path / name).mkdir(parents=True)
        with pytest.raises(RunError, match=rf"holds {name} of some run, but not its run\.json\. Give another --out"):
            RunFolder(tmp_path).begin(RECIPE, ENVIRONMENT, run_id="x")
        (tmp_path / name).rmdir()
    (tmp_path / "notes.txt").touch()
    begun(tmp_path)


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(RunError, match="out is a file"):
        RunFolder(tmp_path / "out").begin(RECIPE, ENVIRONMENT, run_id="x")


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    folder.records_file.write_bytes(folder.records_file.read_bytes() + b'{"step": 100}\n')
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    again = RunFolder(tmp_path)
    assert again.begin(RECIPE, ENVIRONMENT, run_id="some-id") is None
    assert again.is_done()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert again.read_result() == {"accuracy": 0.5, "loss": float("inf")}


def test_a_run_is_done_only_once_it_is_marked(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    folder.write_model({"w": torch.ones(2)})
    assert not folder.is_done()
    folder.finish({})
    assert folder.is_done()


@pytest.mark.attack("Damage")
@pytest.mark.parametrize("name", ["run.json", "records.jsonl", "model.safetensors"])
def test_damage_to_a_finished_run_is_found(tmp_path: Path, name: str) -> None:
    folder = finished(tmp_path)
    folder.verify()
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(RunError, match=f"{name} is damaged"):
        folder.verify()
    if name == "model.safetensors":
        with pytest.raises(RunError, match=f"{name} is damaged"):
            folder.read_model()


@pytest.mark.attack("Damage")
def test_a_damaged_model_of_an_unfinished_run_is_named(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    folder.write_model({"w": torch.ones(2)})
    for damage in (b"", b"x" * 7, folder.model_file.read_bytes()[:-1], b"\xff" * 64):
        folder.model_file.write_bytes(damage)
        with pytest.raises(RunError, match=r"model\.safetensors is damaged"):
            folder.read_model()


@pytest.mark.attack("Damage")
def test_a_damaged_checkpoint_is_named_with_what_to_do(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    folder.save_checkpoint({"step": 1})
    tree = next((tmp_path / "checkpoint").glob("tree-*"))
    tree.write_bytes(b"x" + tree.read_bytes()[1:])
    with pytest.raises(RunError, match=r"tree-000001\.json is damaged.*Remove the folder .*checkpoint to train"):
        folder.begin(RECIPE, ENVIRONMENT, run_id="some-id")


def test_a_checkpoint_without_a_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="step"):
        begun(tmp_path).save_checkpoint({"weights": torch.ones(1)})


def test_the_model_comes_back_and_others_can_read_it(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
    folder = begun(tmp_path)
    folder.write_model(model.state_dict(), {"classes": ["dog", "é"]})
    weights, metadata = folder.read_model()
    assert metadata == {"classes": ["dog", "é"]}
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    with safe_open(folder.model_file, framework="pt") as file:
        assert torch.equal(file.get_tensor("0.weight"), model[0].weight)


def test_tied_weights_are_stored_each(tmp_path: Path) -> None:
    shared = torch.nn.Linear(3, 3)
    model = torch.nn.Sequential(shared, shared)
    folder = begun(tmp_path)
    folder.write_model(model.state_dict())
    model.load_state_dict(folder.read_model()[0])


def test_equal_models_are_equal_bytes(tmp_path: Path) -> None:
    """In whatever order their parts are given; the library writes metadata in random order."""
    weights = {"b": torch.arange(3.0), "a": torch.ones(2, 2).t(), "count": torch.tensor(3)}
    metadata = {key: {key: 1, "x": 2} for key in ("classes", "backbone", "size", "mean", "std")}
    contents = set()
    for number in range(6):
        folder = begun(tmp_path / str(number))
        if number % 2:
            weights, metadata = dict(reversed(weights.items())), dict(reversed(metadata.items()))
        folder.write_model(weights, metadata)
        contents.add(folder.model_file.read_bytes())
    assert len(contents) == 1
    assert str(tmp_path).encode() not in contents.pop()


def test_results_are_read_without_torch(tmp_path: Path) -> None:
    finished(tmp_path)
    ended = subprocess.run([sys.executable, "-c", LIGHT, str(tmp_path)], check=True, capture_output=True, text=True)
    assert ended.stdout.split()[-3:] == ["1", "some-id", "True"]


@pytest.mark.attack("Damage")
def test_files_of_another_run_are_named(tmp_path: Path) -> None:
    folder = finished(tmp_path / "one")
    other = RunFolder(tmp_path / "other")
    other.begin({**RECIPE, "seed": 1}, ENVIRONMENT, run_id="other")
    other.finish({"accuracy": 0.9})
    folder.done_file.write_bytes(other.done_file.read_bytes())
    for read in (folder.read_run, folder.read_result, folder.verify):
        with pytest.raises(RunError, match=r"run\.json is damaged, or .*done\.json is another run's"):
            read()


@pytest.mark.attack("Damage")
def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    folder, other = begun(tmp_path / "one"), RunFolder(tmp_path / "other")
    other.begin({**RECIPE, "seed": 1}, ENVIRONMENT, run_id="other")
    other.save_checkpoint({"step": 3})
    other.checkpoint_folder.rename(folder.checkpoint_folder)
    with pytest.raises(RunError, match=r"checkpoint is not of the run in .*run\.json"):
        folder.begin(RECIPE, ENVIRONMENT, run_id="some-id")


@pytest.mark.attack("Damage")
@pytest.mark.parametrize("damage", [b"", b'{"step": 0, "loss": 2.0}\n', None])
def test_records_that_changed_since_the_checkpoint_are_found(tmp_path: Path, damage: bytes | None) -> None:
    folder = begun(tmp_path)
    folder.append({"step": 0, "loss": 1.0})
    folder.save_checkpoint({"step": 0})
    folder.append({"step": 1, "loss": 1.0})
    if damage is None:
        folder.records_file.unlink()
    else:
        folder.records_file.write_bytes(damage)
    with pytest.raises(RunError, match=r"records\.jsonl is damaged: it changed since the last checkpoint"):
        folder.begin(RECIPE, ENVIRONMENT, run_id="some-id")


@pytest.mark.attack("Several processes")
def test_who_has_lost_the_claim_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = begun(tmp_path / "run")
    folder.save_checkpoint({"step": 0})
    (folder.checkpoint_folder / "tensors-000009.safetensors").touch()  # which the next save would remove
    monkeypatch.setattr(claims, "STALE", 0.0)
    with folder.claimed(), claim(folder.path):
        (folder.path / ".mecam-0.part").touch()
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
        for write in (
            lambda: folder.append({"step": 1}),
            lambda: folder.save_checkpoint({"step": 1}),
            lambda: folder.write_model({"w": torch.ones(1)}),
            lambda: folder.write_predictions({}),
            lambda: folder.end_session("SIGTERM"),
            lambda: folder.finish({}),
            lambda: folder.begin(RECIPE, ENVIRONMENT, run_id="some-id"),
            lambda: folder.writer.make_folder(folder.path / "new"),
        ):
            with pytest.raises(ClaimedError, match="run after this one sent no heartbeat"):
                write()
        add_timing(folder.path, 1.0, 1, folder.writer.write)
        after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before


def test_an_owner_writes_as_everybody_and_leaves_nothing_else(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.claimed():
        begun_with = folder.begin(RECIPE, ENVIRONMENT, run_id="some-id")
        assert begun_with is None
        for step in (0, 1):
            folder.append({"step": step, "loss": 1.0})
            folder.save_checkpoint({"step": step})
        folder.write_model({"w": torch.ones(2)})
        folder.finish({"accuracy": 0.5})
    folder.verify()
    found = {str(path.relative_to(folder.path)) for path in folder.path.rglob("*") if path.is_file()}
    parts = {f"checkpoint/{name}" for name in ("manifest.json", "tensors-000002.safetensors", "tree-000002.json")}
    names = {"run.json", "sessions.jsonl", "records.jsonl", "model.safetensors", "done.json", "claim-000001"}
    assert found == names | parts
    assert {path.name for path in folder.path.iterdir() if path.is_dir()} == {"checkpoint"}


def test_a_folder_that_was_removed_is_reported_as_such(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.claimed():
        folder.begin(RECIPE, ENVIRONMENT, run_id="some-id")
        shutil.rmtree(folder.path)
        with pytest.raises(RunError, match=r"cannot write .*records\.jsonl: No such file"):
            folder.append({"step": 0})


def test_a_folder_can_be_written_after_its_claim_has_ended(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    with folder.claimed():
        pass
    folder.write_confidence({"w": torch.ones(1)}, {})
    assert folder.read_confidence() is not None


@pytest.mark.attack("Several processes")
def test_what_a_former_owner_left_of_an_earlier_checkpoint_is_removed(tmp_path: Path) -> None:
    """It was stopped between the new manifest and the removal of the old files, and the run needs no other save."""
    folder = begun(tmp_path)
    folder.save_checkpoint({"step": 0})
    left = folder.checkpoint_folder / "tensors-000009.safetensors"
    left.touch()
    folder.begin(RECIPE, ENVIRONMENT, run_id="some-id")
    assert not left.exists()
