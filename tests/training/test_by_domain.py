"""Training with optimizers that need the loss of each domain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mecam.data.shapes import shapes
from mecam.methods import METHODS
from mecam.recipe import Recipe, RecipeError
from mecam.training import train
from mecam.training.machine import find_machine
from mecam.training.run import Run
from mecam.training.step import train_step
from tests.optim.flat import flatten

DATA = shapes(per_class=4)
BY_DOMAIN = [name for name in METHODS if vars(METHODS.find(name)).get("by_domain", False)]


def run_of(**values: Any) -> Run:
    entries = {"target": "sketch", "batch": 4, "steps": 6, "image_size": 16, "freeze_bn": True, **values}
    return Run(Recipe(**entries), find_machine("cpu"), DATA)


@pytest.mark.parametrize("weights", ["none", "balanced"])
@pytest.mark.parametrize("method", BY_DOMAIN)
def test_the_loss_is_the_mean_of_the_domains_losses(method: str, weights: str) -> None:
    run = run_of(method=method, class_weights=weights)
    batch = run.feed.next(0)
    loss, state = run.method.loss(run.trained, batch, None, run.method_state)
    each = run.method.domain_losses(run.trained, batch, None, state)
    assert each.shape == (3,)
    torch.testing.assert_close(each.mean(), loss)
    alone = [run.method.domain_losses(run.trained, part, None, state).mean() for part in batch.parts()]
    torch.testing.assert_close(torch.stack(alone), each)


def test_disam_without_variance_is_sam() -> None:
    weights = []
    for optimizer, settings in (("sam", {}), ("disam", {"lam": 0.0}), ("disam", {"lam": 10.0})):
        run = run_of(optimizer=optimizer, optimizer_settings=settings, base="sgd", lr=0.01)
        losses = [train_step(run, step) for step in range(3)]
        assert all(loss is not None and loss.isfinite() for loss in losses)
        weights.append(flatten(list(run.trained.parameters())))
    torch.testing.assert_close(weights[0], weights[1])
    assert (weights[0] - weights[2]).norm() > 1e-4


def test_dgsam_runs_the_network_on_one_domain_at_a_time() -> None:
    run, sizes = run_of(optimizer="dgsam"), list[int]()
    run.network.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    train_step(run, 0)
    assert sizes == [4] * 4  # three domains and one of them again, four images each


@pytest.mark.parametrize("optimizer", ["vasso", "stablesam", "disam", "dgsam"])
def test_a_run_ends_in_a_model(optimizer: str, tmp_path: Path) -> None:
    entries: dict[str, Any] = {"target": "sketch", "steps": 4, "evaluate_every": 2, "batch": 4, "image_size": 16}
    folder = train(Recipe(**entries, optimizer=optimizer), tmp_path, device="cpu", data=DATA)
    assert 0 <= folder.read_result()["target_accuracy"] <= 1


@pytest.mark.parametrize("optimizer", ["disam", "dgsam"])
def test_what_has_no_loss_for_each_domain_is_refused(optimizer: str) -> None:
    with pytest.raises(RecipeError, match=f"{optimizer} needs a loss for each domain, .*method=coral .*one of erm, "):
        run_of(optimizer=optimizer, method="coral")
    with pytest.raises(RecipeError, match=f"{optimizer} needs at least 2 source domains, got 1"):
        run_of(optimizer=optimizer, target=None, sources="photo")
    with pytest.raises(RecipeError, match=f"track=10 needs passes on the mean loss, and {optimizer} takes others"):
        run_of(optimizer=optimizer, track=10)
