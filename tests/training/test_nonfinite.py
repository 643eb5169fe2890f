"""NaN, infinity and batches with nothing in them: found, told, kept, or left out and counted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mecam.data.shapes import ShapesSet, shapes
from mecam.methods import METHODS
from mecam.recipe import Recipe, RecipeError, make
from mecam.runs import checkpoint
from mecam.serving import load_model
from mecam.training import train
from mecam.training.nonfinite import NonFiniteError, require_finite
from mecam.training.run import Run

BAD = 2  # the step whose batch is bad


@pytest.fixture(scope="module")
def data() -> ShapesSet:
    return shapes(per_class=2)


@pytest.fixture
def spoiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The batch of one step is NaN; the names of its images."""
    names: list[str] = []
    step = Run.step

    def spoil(self: Run, number: int) -> Any:
        if number != BAD:
            return step(self, number)
        draw, feed = self.feed.next, self.feed

        def next_(number: int) -> Any:
            before = feed.sampler.state_dict()
            drawn = feed.sampler.next()
            for domain, indices in zip(feed.sources, drawn, strict=True):
                names.extend(self.data.sample_name(domain, int(index)) for index in indices)
            feed.sampler.load_state_dict(before)
            batch = draw(number)
            return replace(batch, images=batch.images * torch.nan)

        with monkeypatch.context() as patch:
            patch.setattr(feed, "next", next_)
            return step(self, number)

    monkeypatch.setattr(Run, "step", spoil)
    return names


def recipe(**values: object) -> Recipe:
    small = {"steps": 4, "evaluate_every": 2, "batch": 2, "image_size": 8}
    return make({"target": "sketch", **small, **values})


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


@pytest.mark.parametrize("optimizer", ["adam", "mecam", "adahessian"])
def test_a_run_leaves_the_step_out_and_counts_it(
    optimizer: str, data: ShapesSet, tmp_path: Path, spoiled: list[str]
) -> None:
    chosen = recipe(optimizer=optimizer, nonfinite="skip")
    folder = train(chosen, tmp_path, device="cpu", data=data)
    assert spoiled
    assert folder.read_result()["skipped_steps"] == 1
    network = load_model(folder.path).network
    assert all(value.isfinite().all() for value in network.state_dict().values()), "buffers too"
    assert np.isfinite([m["loss"] for m in folder.read_result()["splits"].values()]).all()


def test_a_step_that_is_left_out_changes_no_weight(
    data: ShapesSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoiled: list[str]
) -> None:
    weights: list[torch.Tensor] = []
    update = Run._update

    def note(self: Run, batch: Any, *rest: Any) -> Any:
        before = [parameter.detach().clone() for parameter in self.trained.parameters()]
        try:
            return update(self, batch, *rest)
        finally:
            if batch.step == BAD:
                after = list(self.trained.parameters())
                assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
                weights.extend(before)

    monkeypatch.setattr(Run, "_update", note)
    train(recipe(nonfinite="skip"), tmp_path, device="cpu", data=data)
    assert weights
    assert spoiled


@pytest.mark.parametrize("optimizer", ["adam", "mecam"])
def test_what_a_device_left_out_is_told_at_the_next_evaluation(
    optimizer: str, data: ShapesSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoiled: list[str]
) -> None:
    """As on a GPU, which is asked now and then; the batch is drawn once more, here without what spoiled it."""
    step = Run.step

    def as_on_a_gpu(self: Run, number: int) -> Any:
        before = self.feed.state
        self.looks = "device" if optimizer == "adam" else self.looks
        if optimizer == "mecam":
            self.optimizer.nonfinite = "skip"  # type: ignore[attr-defined]
        loss = step(self, number)
        self.noted.append((number, before, self._skipped()))
        return loss

    monkeypatch.setattr(Run, "step", as_on_a_gpu)
    chosen = recipe(optimizer=optimizer, evaluate_every=4)
    with pytest.raises(NonFiniteError, match=rf"step {BAD} of .*not finite; that step was not taken"):
        train(chosen, tmp_path, device="cpu", data=data)
    kept = checkpoint.load(tmp_path / chosen.run_id / "nonfinite")
    assert kept["names"] == spoiled
    assert kept["batch"]["labels"].tolist() == [data.classes.index(name.split("/")[1]) for name in kept["names"]]
    assert all(value.isfinite().all() for name, value in kept["state"]["network"].items() if "running" not in name)


def test_gradients_that_explode_are_found(data: ShapesSet, tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match="not finite"):
        train(recipe(optimizer="sgd", lr=1e30, steps=20, freeze_bn=True), tmp_path, device="cpu", data=data)


def test_large_but_finite_gradients_pass() -> None:
    require_finite(torch.tensor(1.0), [torch.full((10,), 1e30), None, torch.zeros(0)])
    for bad in (torch.tensor([1.0, torch.inf]), torch.tensor([torch.nan])):
        with pytest.raises(FloatingPointError, match="a gradient is not finite"):
            require_finite(torch.tensor(1.0), [bad])
    for gradients in ([], [torch.ones(2)]):
        with pytest.raises(FloatingPointError, match="the loss is not finite"):
            require_finite(torch.tensor(torch.nan), gradients)


def test_batches_with_nothing_in_them(data: ShapesSet, tmp_path: Path) -> None:
    """Images of one colour, all of them the same: every method trains."""
    flat = replace(data, pixels=tuple(np.full_like(images, 7) for images in data.pixels))
    for method in METHODS:
        chosen = recipe(method=method, batch=max(2, METHODS[method].images), steps=1, evaluate_every=1)
        folder = train(chosen, tmp_path, device="cpu", data=flat)
        losses = [metrics["loss"] for metrics in folder.read_result()["splits"].values()]
        assert np.isfinite(losses).all(), method


def test_batches_too_small_for_batch_norm(data: ShapesSet, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"batch=1 .* a single number to normalize; take more or larger images"):
        train(recipe(method="mldg", batch=1), tmp_path, device="cpu", data=data)
