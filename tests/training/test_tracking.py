"""track=k in a recipe: records of curvature beside the run, whole after an interruption, no trace in training."""

import json
import signal
from pathlib import Path

import pytest

from mecam.data.shapes import ShapesSet, shapes
from mecam.progress import Event
from mecam.recipe import Recipe, RecipeError
from mecam.training import Interrupted, train

VALUES = {"target": "sketch", "optimizer": "mecam", "steps": 6, "evaluate_every": 3, "batch": 4, "image_size": 16}


@pytest.fixture(scope="module")
def data() -> ShapesSet:
    return shapes(per_class=4)


def test_records_survive_an_interruption_and_change_nothing(data: ShapesSet, tmp_path: Path) -> None:
    plain = train(Recipe(**VALUES), tmp_path / "plain", device="cpu", data=data)
    recipe = Recipe(**{**VALUES, "track": 2, "track_measures": True})
    whole = train(recipe, tmp_path / "whole", device="cpu", data=data)
    records = [json.loads(line) for line in (whole.path / "tracking.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [0, 2, 4, 6]
    assert all(record["minus_from"] == "measured" for record in records)
    assert whole.read_result() == plain.read_result()

    def interrupt(event: Event) -> None:
        if event.done == 3:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted):
        train(recipe, tmp_path / "stopped", device="cpu", data=data, progress=interrupt)
    resumed = train(recipe, tmp_path / "stopped", device="cpu", data=data)
    for name in ("tracking.jsonl", "model.safetensors"):
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes(), name


@pytest.mark.parametrize(("track", "source"), [(10, "measured"), (3, "extrapolated")])
def test_what_costs_little_is_measured(data: ShapesSet, tmp_path: Path, track: int, source: str) -> None:
    run = train(Recipe(**{**VALUES, "track": track}), tmp_path, device="cpu", data=data)
    records = [json.loads(line) for line in (run.path / "tracking.jsonl").read_text().splitlines()]
    assert {record["minus_from"] for record in records} == {source}


@pytest.mark.parametrize("optimizer", ["adam", "msam"])
def test_an_optimizer_with_one_pass_has_nothing_to_track(data: ShapesSet, tmp_path: Path, optimizer: str) -> None:
    several = "track=2 requires an optimizer with several passes per step, such as sam; "
    with pytest.raises(RecipeError, match=f"{several}{optimizer} takes one"):
        train(Recipe(**{**VALUES, "optimizer": optimizer, "track": 2}), tmp_path, device="cpu", data=data)
