"""Objectives of finished runs against what the runs themselves reported."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mecam.analysis.curvature import curvature
from mecam.analysis.runs import objective_of
from mecam.data.shapes import shapes
from mecam.recipe import Recipe
from mecam.runs import RunError, RunFolder
from mecam.storage.checksums import seal
from mecam.training.loop import train

TINY = {"steps": 2, "evaluate_every": 2, "batch": 4, "target": "photo", "dropout": 0.5}
DATA = shapes()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train(Recipe(**TINY), tmp_path_factory.mktemp("runs"), device="cpu", data=DATA)


@pytest.fixture(scope="module")
def reported(run: RunFolder) -> dict[str, Any]:
    splits: dict[str, Any] = run.read_result()["splits"]
    return splits


def mean_loss(splits: dict[str, Any], names: list[str]) -> float:
    counts = [splits[name]["images"] for name in names]
    total = sum(splits[name]["loss"] * count for name, count in zip(names, counts, strict=True))
    return float(total / sum(counts))


@pytest.mark.parametrize(
    ("split", "names"),
    [
        ("train", ["art in", "cartoon in", "sketch in"]),
        ("validation", ["art out", "cartoon out", "sketch out"]),
        ("target", ["photo in"]),
    ],
)
def test_the_loss_is_the_one_the_run_reported(
    run: RunFolder, reported: dict[str, Any], split: Any, names: list[str]
) -> None:
    function = objective_of(run.path, split, data=DATA)
    assert function.count == sum(reported[name]["images"] for name in names)
    assert function.value() == pytest.approx(mean_loss(reported, names), rel=1e-5)
    assert function.name == split


def test_how_images_are_batched_and_their_precision_do_not_matter(run: RunFolder) -> None:
    losses = [
        objective_of(run.path, "validation", data=DATA, **options).value()
        for options in ({}, {"batch": 7}, {"batch": 10_000}, {"dtype": torch.float64})
    ]
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-5)


def test_float64_is_float64_all_through(run: RunFolder) -> None:
    function = objective_of(run.path, dtype=torch.float64, limit=3, data=DATA)
    assert {p.dtype for p in function.gradient()} == {torch.float64}
    assert curvature(function, (0.1,)).dtype == "float64"


def test_a_limit_takes_some_of_the_images_the_same_every_time(run: RunFolder) -> None:
    function, again = (objective_of(run.path, limit=50, data=DATA) for _ in range(2))
    labels, same = (torch.cat([y for _, y in objective.batches]) for objective in (function, again))
    assert function.count == len(labels) == 50
    assert torch.equal(labels, same)
    everything = objective_of(run.path, "target", data=DATA)
    assert objective_of(run.path, "target", limit=10**6, data=DATA).count == everything.count


def test_the_run_may_be_given_by_the_folder_above_it(run: RunFolder) -> None:
    assert objective_of(run.path.parent, limit=2, data=DATA).count == 2


def test_a_run_without_weights(run: RunFolder, tmp_path: Path) -> None:
    for file in (run.run_file, run.done_file):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(RunError, match=r"no weights: model\.safetensors is missing"):
        objective_of(tmp_path)


def test_a_run_that_is_not_finished_and_a_folder_without_one(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run in"):
        objective_of(tmp_path)
    (tmp_path / "run.json").write_bytes(run.run_file.read_bytes())
    with pytest.raises(RunError, match="not finished"):
        objective_of(tmp_path)


def test_splits_that_are_not_there(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="train, validation, target"):
        objective_of(run.path, "test")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1"):
        objective_of(run.path, limit=0)
    everywhere = train(
        Recipe(**{**TINY, "target": None, "holdout": 0.0, "selection": "last"}), tmp_path, device="cpu", data=DATA
    )
    with pytest.raises(RunError, match="no unseen domain"):
        objective_of(everywhere.path, "target", data=DATA)
    with pytest.raises(RunError, match="has no images"):
        objective_of(everywhere.path, "validation", data=DATA)


def test_data_that_changed_since_is_reported(run: RunFolder, tmp_path: Path) -> None:
    for file in (run.run_file, run.done_file, run.model_file, run.predictions_file, run.records_file):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    done = json.loads(run.done_file.read_text())
    done["result"]["data"] = "another"
    del done["checksum"], done["sessions"]  # as a run of before there were any
    (tmp_path / "done.json").write_bytes(seal(done))
    with pytest.warns(UserWarning, match="not as it was"):
        objective_of(tmp_path, limit=1, data=DATA)
