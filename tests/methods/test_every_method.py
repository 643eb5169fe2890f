"""What holds for all methods alike, in real runs on a small embedded set."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mecam.data.shapes import ShapesSet, shapes
from mecam.hyperparameters import Choice, LogUniform, Uniform
from mecam.methods import METHODS, create
from mecam.optim import OPTIMIZERS
from mecam.recipe import Recipe, RecipeError
from mecam.runs import checkpoint
from mecam.serving import load_model
from mecam.training import train
from mecam.training.machine import find_machine
from mecam.training.run import Run
from mecam.training.state import load_state_dict, state_dict
from mecam.training.step import train_step

PAPER_OPTIMIZERS = ["adam", "adamw", "sgd", "yogi", "adabelief", "adahessian", "sam", "asam", "gsam", "gam", "sagm",
                    "fad", "crsam", "fsam", "mecam"]  # fmt: skip
EVERY = pytest.mark.parametrize("name", list(METHODS))


@pytest.fixture(scope="module")
def data() -> ShapesSet:
    return shapes(per_class=4)


def run(data: ShapesSet, **values: Any) -> Run:
    recipe = Recipe(**{"target": "sketch", "steps": 6, "batch": 4, "image_size": 16, **values})
    return Run(recipe, find_machine("cpu"), data)


def flat(tree: Any, name: str = "") -> dict[str, Any]:
    """The leaves of a state by their place in it."""
    if isinstance(tree, dict):
        return {k: v for key, child in tree.items() for k, v in flat(child, f"{name}.{key}").items()}
    if isinstance(tree, (list, tuple)):
        return {k: v for key, child in enumerate(tree) for k, v in flat(child, f"{name}.{key}").items()}
    return {name: tree}


def assert_same(left: Any, right: Any) -> None:
    one, other = flat(left), flat(right)
    assert one.keys() == other.keys()
    for place, value in one.items():
        if isinstance(value, Tensor):
            assert torch.equal(value, other[place]), place
        else:
            assert value == other[place], place


@EVERY
def test_a_mecam_step_advances_the_state_as_an_adam_step_does(name: str, data: ShapesSet) -> None:
    plain, sharp = run(data, method=name), run(data, method=name, optimizer="mecam")
    train_step(plain, 0), train_step(sharp, 0)
    assert_same(plain.method_state, sharp.method_state)
    assert_same(plain.method.state_dict(), sharp.method.state_dict())
    assert_same(dict(plain.trained.named_buffers()), dict(sharp.trained.named_buffers()))
    assert torch.equal(plain.draws.get_state(), sharp.draws.get_state())


@EVERY
@pytest.mark.parametrize("optimizer", ["adam", "mecam"])
def test_the_state_survives_a_checkpoint(name: str, optimizer: str, data: ShapesSet, tmp_path: Path) -> None:
    whole = run(data, method=name, optimizer=optimizer, dropout=0.1)
    for step in range(2):
        train_step(whole, step)
    checkpoint.save(tmp_path / "checkpoint", state_dict(whole, 1))
    for step in range(2, 4):
        train_step(whole, step)
    end = state_dict(whole, 3)
    resumed = run(data, method=name, optimizer=optimizer, dropout=0.1)
    load_state_dict(resumed, checkpoint.load(tmp_path / "checkpoint"))
    for step in range(2, 4):
        train_step(resumed, step)
    assert_same(end, state_dict(resumed, 3))


@EVERY
def test_steps_move_what_trains_and_nothing_else(name: str, data: ShapesSet) -> None:
    built = run(data, method=name)
    before = {key: value.clone() for key, value in built.trained.named_parameters()}
    sides = {key: value.clone() for key, value in flat(built.method.state_dict()).items() if isinstance(value, Tensor)}
    for step in range(6):
        train_step(built, step)
    trained = {id(p) for group in built.optimizer.param_groups for p in group["params"]}
    frozen = {id(p) for p in built.trained.parameters()} - trained
    for key, parameter in built.trained.named_parameters():
        assert torch.equal(parameter, before[key]) == (id(parameter) in frozen), key
        assert parameter.isfinite().all()
    after = flat(built.method.state_dict())
    for key, value in sides.items():
        if ".module." in key and value.is_floating_point():
            assert not torch.equal(value, after[key]), key


@EVERY
def test_too_little_is_refused_and_the_least_trains(name: str, data: ShapesSet) -> None:
    method = METHODS[name]
    if method.images > 1:
        with pytest.raises(RecipeError, match=f"{name} needs at least {method.images} images per domain"):
            run(data, method=name, batch=method.images - 1)
    least = run(data, method=name, batch=method.images)
    for step in range(2):
        train_step(least, step)
    assert all(parameter.isfinite().all() for parameter in least.trained.parameters())


@EVERY
def test_a_class_may_be_absent(name: str, data: ShapesSet) -> None:
    built = run(data, method=name)
    feed = built.feed.next

    def one_class(step: int) -> Any:
        batch = feed(step)
        batch.labels.fill_(1)
        return batch

    built.feed.next = one_class  # type: ignore[method-assign]
    for step in range(2):
        train_step(built, step)
    assert all(parameter.isfinite().all() for parameter in built.trained.parameters())


@EVERY
def test_hyperparameters_are_declared_with_defaults_in_their_ranges(name: str) -> None:
    method, given = METHODS[name], METHODS.defaults(name)
    for key, hyperparameter in method.hyperparameters.items():
        if given[key] is not None:  # which leaves a rate to the recipe's
            hyperparameter.check(name, key, given[key])
        match hyperparameter.search:
            case Choice(values):
                found = list(values)
            case Uniform(low, high):
                found = [low, high]
            case LogUniform(low, high, base):
                found = [base**low, base**high]
            case None:
                found = []
        for value in found:
            hyperparameter.check(name, key, round(value) if hyperparameter.integer else value)
        with pytest.raises((ValueError, TypeError), match=key):
            create(name, **{key: float("nan")})


@pytest.mark.parametrize(("number", "name"), list(enumerate(METHODS)))
def test_a_sample_of_all_combinations_trains(number: int, name: str, data: ShapesSet, tmp_path: Path) -> None:
    """Every method, optimizer and averaging at least once."""
    optimizer = PAPER_OPTIMIZERS[number % len(PAPER_OPTIMIZERS)]
    averaging = ("none", "ema", "swad")[number % 3]
    values = {"method": name, "optimizer": optimizer, "averaging": averaging, "steps": 2, "evaluate_every": 1}
    recipe = Recipe(**{"target": "sketch", "batch": 4, "image_size": 16, **values})
    if optimizer == "adahessian" and METHODS[name].surgery:
        with pytest.raises(RecipeError, match=f"{name} writes gradients itself"):
            train(recipe, tmp_path, device="cpu", data=data)
        recipe = Recipe(**{**recipe.to_dict(), "optimizer": "adam"})
    folder = train(recipe, tmp_path, device="cpu", data=data)
    assert 0 <= folder.read_result()["target_accuracy"] <= 1
    model = load_model(folder.path)
    with torch.inference_mode():
        alone = model.network(torch.zeros(1, 3, 16, 16))
    assert alone.shape == (1, 7)
    assert alone.isfinite().all()


def test_every_optimizer_of_the_paper_is_known() -> None:
    assert set(PAPER_OPTIMIZERS) <= set(OPTIMIZERS)


def test_surgery_under_adahessian_is_refused(data: ShapesSet) -> None:
    for name in (name for name, method in METHODS.items() if method.surgery):
        for values in ({"optimizer": "adahessian"}, {"optimizer": "sam", "base": "adahessian"}):
            with pytest.raises(RecipeError, match=f"{name} writes gradients itself"):
                run(data, method=name, **values)


def test_fewer_sources_than_a_method_needs_are_refused(data: ShapesSet) -> None:
    class Two:
        """The embedded set with two domains, one of which is the target."""

        domains = data.domains[-2:]

        def __getattr__(self, name: str) -> Any:
            return getattr(data, name)

    for name in (name for name, method in METHODS.items() if method.sources > 1):
        with pytest.raises(RecipeError, match=f"{name} needs at least 2 source domains, got 1"):
            run(Two(), method=name)  # type: ignore[arg-type]


@EVERY
def test_a_subclass_says_itself_whether_it_can_be_captured(name: str) -> None:
    method = METHODS[name]
    assert not method.capturable or method.declares("capturable"), "it is not inherited"
