"""Class weights in the losses of all methods, against losses that weigh image by image."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.data.sampling import balanced_weights
from mecam.data.shapes import ShapesSet, shapes
from mecam.methods import METHODS, Batch, Setting, create
from mecam.methods.erm import ERM
from mecam.models.network import Network
from mecam.recipe import Recipe, RecipeError
from mecam.training.build import check_parts
from mecam.training.machine import find_machine
from mecam.training.run import Run
from mecam.training.step import train_step

WEIGHTS = torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64)
LATE = 4000  # after all annealing


def gradients(name: str, network: Network, batch: Batch, setting: Setting) -> list[Tensor]:
    torch.manual_seed(0)
    method = create(name)
    module = method.build(network, setting).double()
    draw = method.draw(batch, torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    loss, _ = method.gradient(module, batch, draw, method.initial_state())
    return [loss, *(parameter.grad for parameter in module.parameters() if parameter.grad is not None)]


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.weighted])
def test_weights_of_one_change_nothing_and_others_do(
    name: str, make_network: Callable[..., Network], make_batch: Callable[..., Batch], setting: Setting
) -> None:
    batch = make_batch(each=8, step=LATE)
    plain = gradients(name, make_network(), batch, setting)
    ones = gradients(name, make_network(), replace(batch, class_weights=torch.ones_like(WEIGHTS)), setting)
    torch.testing.assert_close(ones, plain, rtol=1e-10, atol=1e-12)
    weighted = gradients(name, make_network(), replace(batch, class_weights=WEIGHTS), setting)
    assert any(not torch.allclose(one, other) for one, other in zip(weighted, plain, strict=True))


def test_the_loss_is_the_mean_of_the_weighted_losses(network: Network, batch: Batch) -> None:
    batch = replace(batch, class_weights=WEIGHTS)
    loss, _ = ERM().loss(network, batch, None, None)
    shares = network(batch.images).log_softmax(1).tolist()
    expected = -sum(WEIGHTS[y].item() * row[y] for row, y in zip(shares, batch.labels.tolist(), strict=True))
    assert loss.item() == pytest.approx(expected / len(batch.labels), rel=1e-12)


def test_the_penalty_of_irm_is_on_the_weighted_risk(network: Network, batch: Batch, setting: Setting) -> None:
    batch = replace(batch, class_weights=WEIGHTS, step=LATE)
    method = create("irm", lam=1.0, anneal=0.0)
    method.build(network, setting)
    penalties = []
    for logits, labels in zip(network(batch.images).chunk(3), batch.labels.chunk(3), strict=True):
        scale = torch.ones((), dtype=torch.float64, requires_grad=True)
        each = WEIGHTS[labels] * F.cross_entropy(scale * logits, labels, reduction="none")
        slopes = [torch.autograd.grad(each[half::2].mean(), scale, retain_graph=True)[0] for half in (0, 1)]
        penalties.append(slopes[0] * slopes[1])
    loss, _ = method.loss(network, batch, None, None)
    risk = batch.cross_entropy(network(batch.images))
    torch.testing.assert_close(loss - risk, torch.stack(penalties).mean(), rtol=1e-9, atol=1e-12)


def test_fishr_matches_variances_of_weighted_gradients(network: Network, batch: Batch, setting: Setting) -> None:
    batch = replace(batch, class_weights=WEIGHTS, step=LATE)
    method = create("fishr", lam=1.0, anneal=0.0, ema=0.0)
    method.build(network, setting)
    logits, head = network(batch.images), list(network.head.parameters())
    rows = [
        torch.cat([part.flatten() for part in torch.autograd.grad(loss, head, retain_graph=True)])
        for loss in WEIGHTS[batch.labels] * F.cross_entropy(logits, batch.labels, reduction="none")
    ]
    variances = torch.stack(rows).view(batch.domains, -1, len(rows[0])).var(1, correction=0)
    loss, _ = method.loss(network, batch, None, method.initial_state())
    penalty = (variances - variances.mean(0)).square().mean()
    torch.testing.assert_close(loss, batch.cross_entropy(logits) + penalty, rtol=1e-9, atol=1e-12)


def test_balanced_weights_make_classes_count_alike() -> None:
    labels = [np.array([0] * 8 + [1] * 2), np.array([0] * 5 + [3] * 15)]
    parts = [np.arange(10), np.arange(20)]
    shares = np.array([(0.8 + 0.25) / 2, 0.2 / 2, 0, 0.75 / 2])  # of a batch with as many images of each domain
    weights = balanced_weights(labels, parts, 4).numpy()
    assert weights * shares == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])


@pytest.fixture(scope="module")
def data() -> ShapesSet:
    return shapes(per_class=4)


def test_a_run_weighs_the_classes_of_its_sources(data: ShapesSet) -> None:
    recipe = Recipe(target="sketch", steps=1, batch=4, image_size=16, class_weights="balanced", optimizer="mecam")
    assert recipe.run_id != replace(recipe, class_weights="none").run_id
    run = Run(recipe, find_machine("cpu"), data)
    expected = run.feed.class_weights
    assert expected is not None
    assert run.feed.next(0).class_weights is expected
    assert len(expected) == len(data.classes)
    train_step(run, 0)


def test_class_weights_that_have_no_effect_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        RecipeError, match="balanced=true samples classes evenly and class_weights=balanced weighs them"
    ):
        check_parts(Recipe(balanced=True, class_weights="balanced"))
    with pytest.raises(RecipeError, match="class_weights='even' is not allowed; it must be one of none, balanced"):
        Recipe(class_weights="even")
    monkeypatch.setattr(ERM, "weighted", False)  # as of a method of the user's own
    with pytest.raises(RecipeError, match="class_weights=balanced: erm does not weigh classes; choose another method"):
        check_parts(Recipe(class_weights="balanced"))
