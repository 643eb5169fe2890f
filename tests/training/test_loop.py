"""Real runs on the embedded set: the protocol's steps, resuming to the bit, and the files a run leaves."""

import json
from pathlib import Path

import pytest

from mecam.data.shapes import ShapesSet, shapes
from mecam.progress import Event
from mecam.recipe import Recipe, RecipeError
from mecam.runs import RunFolder
from mecam.serving import load_model
from mecam.training import Interrupted, train


@pytest.fixture(scope="module")
def data() -> ShapesSet:
    return shapes(per_class=6)


def recipe(**values: object) -> Recipe:
    return Recipe(**{"target": "sketch", "steps": 4, "evaluate_every": 2, "batch": 4, **values})


@pytest.mark.parametrize("optimizer", ["adam", "mecam"])
def test_a_stopped_run_ends_where_an_undisturbed_one_does(optimizer: str, data: ShapesSet, tmp_path: Path) -> None:
    chosen = recipe(optimizer=optimizer, dropout=0.1, averaging="ema")
    whole = train(chosen, tmp_path / "whole", device="cpu", data=data)

    def interrupt(event: Event) -> None:
        import signal

        if event.done == 1:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted, match="SIGTERM after step 1"):
        train(chosen, tmp_path / "stopped", device="cpu", data=data, progress=interrupt)
    resumed = train(chosen, tmp_path / "stopped", device="cpu", data=data)
    for name in ("model.safetensors", "records.jsonl", "done.json"):
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes(), name


def test_a_run_that_an_older_version_began_is_finished(data: ShapesSet, tmp_path: Path) -> None:
    values = recipe().to_dict()
    values["record"] = values.pop("capture")  # its former name
    del values["skip_unreadable"]
    RunFolder(tmp_path / recipe().run_id).begin(values, {}, run_id=recipe().run_id)
    assert train(recipe(), tmp_path, device="cpu", data=data).is_done()


def test_what_a_run_leaves(data: ShapesSet, tmp_path: Path) -> None:
    chosen = recipe()
    folder = train(chosen, tmp_path, device="cpu", data=data)
    assert folder.path == tmp_path / chosen.run_id
    assert [record["step"] for record in folder.read_records()] == [0, 2, 4]
    splits = folder.read_records()[0]["splits"]
    assert set(splits) == {*(f"{domain} out" for domain in data.domains if domain != "sketch"), "sketch in"}
    everything = {f"{domain} {part}" for domain in data.domains for part in ("in", "out")}
    assert set(folder.read_result()["splits"]) == everything
    assert json.loads((folder.path / "run.json").read_text())["recipe"]["target"] == "sketch"
    model = load_model(folder.path)
    assert model.classes == data.classes
    before = (folder.path / "done.json").stat().st_mtime_ns
    train(chosen, tmp_path, device="cpu", data=data)  # a finished run is left as it is
    assert (folder.path / "done.json").stat().st_mtime_ns == before


def test_patience_ends_a_run_that_does_not_improve_also_after_a_resume(data: ShapesSet, tmp_path: Path) -> None:
    chosen = recipe(steps=40, lr=0.0, freeze_bn=True, patience=2)
    assert chosen.run_id != recipe(steps=40, lr=0.0, freeze_bn=True).run_id

    def interrupt(event: Event) -> None:
        import signal

        if event.done == 3:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted, match="SIGTERM after step 3"):
        train(chosen, tmp_path, device="cpu", data=data, progress=interrupt)
    folder = train(chosen, tmp_path, device="cpu", data=data)
    assert [record["step"] for record in folder.read_records()] == [0, 2, 4]
    assert folder.is_done()
    with pytest.raises(RecipeError, match=r"no source image to .* without swad and patience"):
        train(recipe(holdout=0.0, selection="last", patience=1), tmp_path, device="cpu", data=data)


def test_every_domain_is_a_source_without_a_target(data: ShapesSet, tmp_path: Path) -> None:
    folder = train(recipe(target=None), tmp_path, device="cpu", data=data)
    assert folder.read_result()["target_accuracy"] is None


def test_the_step_of_the_best_source_validation_is_kept(data: ShapesSet, tmp_path: Path) -> None:
    folder = train(recipe(), tmp_path, device="cpu", data=data)

    def validation(record: dict[str, dict[str, dict[str, float]]]) -> float:
        found = [m["accuracy"] for n, m in record["splits"].items() if n.endswith(" out") and n != "sketch out"]
        return sum(found) / len(found)

    best = max(folder.read_records(), key=validation)  # the earliest of equals
    assert folder.read_result()["selected_step"] == best["step"]


def test_bad_recipes_are_refused() -> None:
    with pytest.raises(RecipeError, match="no entry 'optimiser'; did you mean optimizer"):
        Recipe(optimiser="sam")
    with pytest.raises(RecipeError, match="steps='many' is a str; it must be a whole number"):
        Recipe(steps="many")
    with pytest.raises(RecipeError, match=r"dropout=1\.5"):
        Recipe(dropout=1.5)


def test_equal_recipes_have_one_name() -> None:
    assert recipe().run_id == recipe().run_id
    assert recipe().run_id != recipe(seed=1).run_id
