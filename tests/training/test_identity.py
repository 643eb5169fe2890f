"""A run resumes on the data and weights that it began with, and records other code."""

import json
import signal
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from mecam.data.shapes import ShapesSet, shapes
from mecam.models import create
from mecam.progress import Event
from mecam.recipe import Recipe
from mecam.runs import CircumstancesWarning, RunError, RunFolder, checkpoint
from mecam.storage.checksums import seal
from mecam.training import Interrupted, environment, train
from mecam.training.rerun import rerun
from tests.training.pixels import with_pixels

SMALL = {"target": "sketch", "steps": 4, "evaluate_every": 2, "batch": 2, "image_size": 8}


@pytest.fixture(scope="module")
def data() -> ShapesSet:
    return shapes(per_class=2)


def stop(event: Event) -> None:
    if event.done == 1:
        signal.raise_signal(signal.SIGTERM)


def start(out: Path, data: ShapesSet, **values: Any) -> Recipe:
    """Begin a run and stop it after step 1."""
    recipe = Recipe(**{**SMALL, **values})
    with pytest.raises(Interrupted):
        train(recipe, out, device="cpu", data=data, progress=stop)
    return recipe


def relabelled(data: ShapesSet) -> ShapesSet:
    """Swap an image of the first class with one of the last."""
    pixels = [images.copy() for images in data.pixels]
    pixels[0][[0, -1]] = pixels[0][[-1, 0]]
    return with_pixels(data, pixels)


@pytest.mark.attack("What a run is trained on")
def test_other_labels_are_refused(data: ShapesSet, tmp_path: Path) -> None:
    recipe = start(tmp_path, data)
    other = relabelled(data)
    digests = rf'data is "{data.fingerprint}" there and "{other.fingerprint}" here'
    with pytest.raises(RunError, match=rf"a run on other data or weights: {digests}\. Give another --out, or remove"):
        train(recipe, tmp_path, device="cpu", data=other)
    folder = train(recipe, tmp_path, device="cpu", data=data)
    assert folder.is_done()
    assert [session.get("ended") for session in folder.read_sessions()] == [
        "stopped by SIGTERM after step 1; the run is saved",
        "done",
    ]


@pytest.mark.attack("What a run is trained on")
def test_more_images_are_refused_and_counted(data: ShapesSet, tmp_path: Path) -> None:
    recipe = start(tmp_path, data)
    with pytest.raises(RunError, match=r"images\.art is 14 there and 21 here; .*; data is "):
        train(recipe, tmp_path, device="cpu", data=shapes(per_class=3))


@pytest.mark.attack("What a run is trained on")
def test_a_run_without_a_checkpoint_is_of_its_data_too(data: ShapesSet, tmp_path: Path) -> None:
    recipe = Recipe(**SMALL)

    def die(_: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path, device="cpu", data=data, progress=die)
    with pytest.raises(RunError, match="on other data or weights"):
        train(recipe, tmp_path, device="cpu", data=relabelled(data))


@pytest.mark.attack("What a run is trained on")
def test_other_weights_in_the_file_are_refused(data: ShapesSet, tmp_path: Path) -> None:
    def write(seed: int) -> None:
        torch.manual_seed(seed)
        save_file(create("resnet8", classes=2).featurizer.state_dict(), file)

    file = tmp_path / "weights.safetensors"
    write(0)
    recipe = start(tmp_path / "out", data, weights=str(file))
    write(1)
    with pytest.raises(RunError, match=r'other data or weights: weights is "\w+" there and "\w+" here'):
        train(recipe, tmp_path / "out", device="cpu", data=data)
    write(0)
    assert train(recipe, tmp_path / "out", device="cpu", data=data).is_done()


def as_before(folder: RunFolder, with_checkpoint: bool) -> None:
    """Make an unfinished run one of a version that kept no fingerprints."""
    state = folder.load_checkpoint()
    assert state is not None
    written = json.loads(folder.run_file.read_bytes())
    del written["fingerprints"], written["checksum"]
    folder.run_file.write_bytes(seal(written))
    if with_checkpoint:
        del state["fingerprints"]
    folder.save_checkpoint(state)


@pytest.mark.parametrize("change", [relabelled, lambda data: data])
def test_a_run_of_an_earlier_version_resumes(
    change: Callable[[ShapesSet], ShapesSet], data: ShapesSet, tmp_path: Path
) -> None:
    recipe = start(tmp_path, data)
    folder = RunFolder(tmp_path / recipe.run_id)
    as_before(folder, with_checkpoint=True)
    assert train(recipe, tmp_path, device="cpu", data=change(data)).is_done()
    found = rerun(folder, tmp_path / "again", device="cpu", data=change(data))
    assert found.inputs == ()
    assert found.is_same is (change(data) is data)


def test_a_new_checkpoint_of_an_old_run_has_the_fingerprints(data: ShapesSet, tmp_path: Path) -> None:
    recipe = start(tmp_path, data)
    as_before(RunFolder(tmp_path / recipe.run_id), with_checkpoint=False)
    with pytest.raises(RunError, match="on other data or weights"):
        train(recipe, tmp_path, device="cpu", data=relabelled(data))


@pytest.mark.attack("What a run is trained on")
def test_other_code_is_reported_once_and_recorded(
    data: ShapesSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = start(tmp_path, data)
    own = environment.source()
    monkeypatch.setattr(environment, "source", lambda: "another")
    with pytest.warns(CircumstancesWarning) as seen, pytest.raises(Interrupted):
        train(recipe, tmp_path, device="cpu", data=data, progress=lambda e: stop(replace(e, done=e.done - 1)))
    assert str(seen[0].message) == (
        f"this run was trained with source={own} and resumes with source=another: results may differ"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folder = train(recipe, tmp_path, device="cpu", data=data)
    sources = [session["environment"]["source"] for session in folder.read_sessions()]
    assert sources == [own, "another", "another"]


def test_checkpoint_and_run_have_the_fingerprints(data: ShapesSet, tmp_path: Path) -> None:
    recipe = start(tmp_path, data)
    folder = RunFolder(tmp_path / recipe.run_id)
    expected = {"images": dict.fromkeys(data.domains, 14), "data": data.fingerprint, "weights": None}
    assert folder.read_run()["fingerprints"] == expected
    assert checkpoint.load(folder.checkpoint_folder)["state"]["fingerprints"] == expected
