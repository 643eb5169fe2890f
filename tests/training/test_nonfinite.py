"""Non-finite steps are detected, reported and saved, or skipped and counted; and batches of constant images."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from mecam.data.shapes import ShapesSet, shapes
from mecam.methods import METHODS, Batch
from mecam.recipe import Recipe, RecipeError
from mecam.runs import checkpoint
from mecam.serving import load_model
from mecam.training import loop, train
from mecam.training.machine import find_machine
from mecam.training.nonfinite import BadStep, NonFiniteError, finite_or
from mecam.training.run import Run
from mecam.training.step import train_step
from tests.training.pixels import with_pixels

BAD = 2  # the step whose batch is bad


@pytest.fixture(scope="module")
def data() -> ShapesSet:
    return shapes(per_class=2)


@pytest.fixture
def spoiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The batch of one step is NaN; the names of its images."""
    names: list[str] = []
    step = loop.train_step

    def spoil(run: Run, number: int) -> Any:
        if number != BAD:
            return step(run, number)
        draw, feed = run.feed.next, run.feed

        def next_(number: int) -> Any:
            names.extend(feed.names(feed.state))
            batch = draw(number)
            return replace(batch, images=batch.images * torch.nan)

        with monkeypatch.context() as patch:
            patch.setattr(feed, "next", next_)
            return step(run, number)

    monkeypatch.setattr(loop, "train_step", spoil)
    return names


def recipe(**values: object) -> Recipe:
    small = {"steps": 4, "evaluate_every": 2, "batch": 2, "image_size": 8}
    return Recipe(**{"target": "sketch", **small, **values})


@pytest.mark.attack("Non-finite numbers")
@pytest.mark.parametrize("optimizer", ["adam", "mecam"])
def test_a_run_stops_with_step_names_and_state(
    optimizer: str, data: ShapesSet, tmp_path: Path, spoiled: list[str]
) -> None:
    chosen = recipe(optimizer=optimizer)
    with pytest.raises(NonFiniteError, match=rf"step {BAD} of .*not finite .*--set nonfinite=skip") as stopped:
        train(chosen, tmp_path, device="cpu", data=data)
    kept = checkpoint.load(tmp_path / chosen.run_id / "nonfinite")
    assert kept["names"] == spoiled
    assert len(kept["names"]) == 6
    assert kept["names"][0] in str(stopped.value)
    assert kept["batch"]["images"].isnan().all()
    assert kept["batch"]["labels"].tolist() == [data.classes.index(name.split("/")[1]) for name in kept["names"]]
    assert (kept["step"], kept["state"]["step"]) == (BAD, BAD - 1)
    parameters = [name for name in kept["state"]["network"] if name.endswith(("weight", "bias"))]
    assert all(kept["state"]["network"][name].isfinite().all() for name in parameters)


@pytest.mark.attack("Non-finite numbers")
@pytest.mark.parametrize("optimizer", ["adam", "mecam", "adahessian"])
def test_a_run_skips_the_step_and_counts_it(
    optimizer: str, data: ShapesSet, tmp_path: Path, spoiled: list[str]
) -> None:
    chosen = recipe(optimizer=optimizer, nonfinite="skip")
    folder = train(chosen, tmp_path, device="cpu", data=data)
    assert spoiled
    assert folder.read_result()["skipped_steps"] == 1
    network = load_model(folder.path).network
    assert all(value.isfinite().all() for value in network.state_dict().values()), "buffers too"
    assert np.isfinite([m["loss"] for m in folder.read_result()["splits"].values()]).all()


@pytest.mark.attack("Non-finite numbers")
def test_a_skipped_step_changes_no_weight(
    data: ShapesSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoiled: list[str]
) -> None:
    compared = 0
    step = loop.train_step

    def compare(run: Run, number: int) -> Any:
        nonlocal compared
        before = [parameter.detach().clone() for parameter in run.parameters]
        loss = step(run, number)
        if number == BAD:
            assert all(torch.equal(a, b) for a, b in zip(before, run.parameters, strict=True))
            compared += 1
        return loss

    monkeypatch.setattr(loop, "train_step", compare)
    train(recipe(nonfinite="skip"), tmp_path, device="cpu", data=data)
    assert compared
    assert spoiled


def as_nan(batch: Batch) -> Batch:
    return replace(batch, images=batch.images * torch.nan)


@pytest.mark.attack("Non-finite numbers")
@pytest.mark.parametrize(("method", "turn"), [("dann", 1), ("adrmx", 2)])
def test_a_step_of_an_adversary_is_reported_with_its_images(method: str, turn: int, data: ShapesSet) -> None:
    run = Run(recipe(method=method), find_machine("cpu"), data)
    for number in range(turn):
        train_step(run, number)
    assert run.method.declines(turn)
    names, draw = run.feed.names(run.feed.state), run.feed.next
    run.feed.next = lambda number: as_nan(draw(number))  # type: ignore[method-assign]
    with pytest.raises(BadStep) as stopped:
        train_step(run, turn)
    assert (stopped.value.step, list(stopped.value.names)) == (turn, names)


@pytest.mark.attack("Non-finite numbers")
@pytest.mark.parametrize("method", ["dann", "cdann", "sagnet", "mdsdi", "madg", "urm", "adrmx"])
def test_an_adversary_skips_its_steps(method: str, data: ShapesSet) -> None:
    run = Run(recipe(method=method, steps=9, batch=4, nonfinite="skip"), find_machine("cpu"), data)
    draw = run.feed.next

    def learned() -> list[torch.Tensor]:
        sides = (side.state_dict() for side in run.method.sides.values())
        return [leaf.clone() for leaf in tree_leaves(list(sides)) if isinstance(leaf, torch.Tensor)]

    for number in range(3):  # network and discriminator
        train_step(run, number)
    before = learned()
    run.feed.next = lambda number: as_nan(draw(number))  # type: ignore[method-assign]
    for number in range(3, 6):
        train_step(run, number)
    torch.testing.assert_close(learned(), before, rtol=0, atol=0)
    run.feed.next = draw  # type: ignore[method-assign]
    skipped = int(run.optimizer.skipped)
    for number in range(6, 9):
        train_step(run, number)
    assert int(run.optimizer.skipped) == skipped
    assert all(value.isfinite().all() for value in run.trained.state_dict().values()), "buffers too"
    assert any(not torch.equal(a, b) for a, b in zip(learned(), before, strict=True))


@pytest.mark.attack("Non-finite numbers")
@pytest.mark.parametrize("optimizer", ["adam", "mecam"])
def test_steps_that_a_device_skipped_are_reported_at_the_next_evaluation(
    optimizer: str, data: ShapesSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoiled: list[str]
) -> None:
    """As on a GPU, whose counts are read at evaluations; the batch is drawn again, here without the NaN."""
    step = loop.train_step

    def as_on_a_gpu(run: Run, number: int) -> Any:
        before = run.feed.state
        run.optimizer.nonfinite = "skip"
        loss = step(run, number)
        run.unread.append((number, before, torch.as_tensor(run.optimizer.skipped)))
        return loss

    monkeypatch.setattr(loop, "train_step", as_on_a_gpu)
    chosen = recipe(optimizer=optimizer, evaluate_every=4)
    with pytest.raises(NonFiniteError, match=rf"step {BAD} of .*not finite; that step was not taken"):
        train(chosen, tmp_path, device="cpu", data=data)
    kept = checkpoint.load(tmp_path / chosen.run_id / "nonfinite")
    assert kept["names"] == spoiled
    assert kept["batch"]["labels"].tolist() == [data.classes.index(name.split("/")[1]) for name in kept["names"]]
    assert all(value.isfinite().all() for name, value in kept["state"]["network"].items() if "running" not in name)


@pytest.mark.attack("Non-finite numbers")
def test_gradients_that_explode_are_found(data: ShapesSet, tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match="not finite"):
        train(recipe(optimizer="sgd", lr=1e30, steps=20, freeze_bn=True), tmp_path, device="cpu", data=data)


@pytest.mark.attack("Non-finite numbers")
@pytest.mark.parametrize("selection", ["validation", "last", "oracle"])
def test_weights_with_outputs_that_are_not_finite_end_the_run(selection: str, data: ShapesSet, tmp_path: Path) -> None:
    chosen = recipe(lr=1e37, steps=0, selection=selection)  # finite gradients, and weights that overflow
    with pytest.raises(NonFiniteError, match=r"after step 0: outputs .* not finite .* on art out, .*: lower the"):
        train(chosen, tmp_path, device="cpu", data=data)
    assert not (tmp_path / chosen.run_id / "done.json").exists()
    with pytest.raises(NonFiniteError, match="no evaluation had finite outputs, so no step can be selected"):
        train(replace(chosen, nonfinite="skip"), tmp_path, device="cpu", data=data)


@pytest.mark.attack("Non-finite numbers")
@pytest.mark.parametrize("selection", ["validation", "last", "oracle"])
def test_a_step_with_outputs_that_are_not_finite_is_not_selected(
    selection: str, data: ShapesSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = loop.train_step

    def diverge(run: Run, number: int) -> Any:
        loss = step(run, number)
        if number == 4:
            for parameter in run.parameters:
                parameter.data.fill_(torch.nan)
        return loss

    monkeypatch.setattr(loop, "train_step", diverge)
    folder = train(recipe(selection=selection, nonfinite="skip"), tmp_path, device="cpu", data=data)
    last, result = folder.read_records()[-1], folder.read_result()
    assert last["step"] == 4
    assert {metrics["accuracy"] for metrics in last["splits"].values()} == {0.0}
    assert result["selected_step"] < 4
    assert np.isfinite([metrics["loss"] for metrics in result["splits"].values()]).all()


@pytest.mark.attack("Non-finite numbers")
def test_a_running_state_stays_finite() -> None:
    old = {"steps": 1, "mean": torch.ones(2)}
    new = {"steps": 2, "mean": torch.zeros(2), "count": torch.tensor(3)}
    assert finite_or(new, old) is new
    assert finite_or({**new, "mean": torch.tensor([1.0, torch.nan])}, old) is old
    assert finite_or(None, None) is None


@pytest.mark.attack("Non-finite numbers")
def test_the_device_chooses_between_running_states_alike() -> None:
    old = {"mean": torch.ones(2, device="meta"), "name": "a"}  # a value of this device cannot be read
    assert finite_or({**old, "mean": torch.zeros(2, device="meta")}, old)["mean"].shape == (2,)
    real = {"mean": torch.ones(2), "count": torch.tensor(3), "name": "a"}
    new = {"mean": torch.zeros(2), "count": torch.tensor(4), "name": "a"}
    for mean, expected in ((torch.zeros(2), new), (torch.tensor([0.0, torch.nan]), real)):
        chosen = finite_or({**new, "mean": mean}, real)
        assert chosen["mean"].equal(expected["mean"])
        assert chosen["count"].equal(expected["count"])
        assert chosen["name"] == "a"


@pytest.mark.attack("Non-finite numbers")
def test_batches_with_nothing_in_them(data: ShapesSet, tmp_path: Path) -> None:
    """Images of one colour, all of them the same: every method trains."""
    flat = with_pixels(data, (np.full_like(images, 7) for images in data.pixels))
    for method in METHODS:
        chosen = recipe(method=method, batch=max(2, METHODS[method].images), steps=1, evaluate_every=1)
        folder = train(chosen, tmp_path, device="cpu", data=flat)
        losses = [metrics["loss"] for metrics in folder.read_result()["splits"].values()]
        assert np.isfinite(losses).all(), method


@pytest.mark.attack("Non-finite numbers")
def test_batches_too_small_for_batch_norm(data: ShapesSet, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"batch=1 .* a single number to normalize; take more or larger images"):
        train(recipe(method="mldg", batch=1), tmp_path, device="cpu", data=data)
