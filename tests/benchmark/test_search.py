"""The searches: sizes, streams, and what may be drawn."""

import numpy as np
import pytest

from mecam.benchmark.search import paper_grid, with_draws, with_grid
from mecam.data.splits import seed_hash
from mecam.methods import METHODS
from mecam.optim.registry import OPTIMIZERS
from mecam.recipe import Recipe, is_variant


def test_the_grid_has_192_points_and_120_are_ordered() -> None:
    assert len(paper_grid()) == 192
    ordered = paper_grid(ordered=True)
    assert len(ordered) == 120
    assert all(p["optimizer_settings"]["beta"] <= p["optimizer_settings"]["alpha"] for p in ordered)


def test_the_grid_multiplies_recipes_and_keeps_other_settings() -> None:
    recipe = Recipe(optimizer="mecam", target="art", optimizer_settings={"betas": [0.5, 0.9]})
    found = with_grid([recipe], paper_grid()[:3])
    assert len({r.run_id for r in found}) == 3
    assert found[0].optimizer_settings == {"betas": [0.5, 0.9], "rho": 0.01, "alpha": 0.05, "beta": 0.05}


def test_the_first_draw_is_the_recipe_and_the_streams_are_domainbeds() -> None:
    recipe = Recipe(data="PACS", method="coral", target="art", seed=2)
    first, second = with_draws([recipe], 2)
    assert first == recipe
    stream = np.random.RandomState(seed_hash(seed_hash(1, 2), "lr"))
    assert second.lr == 10 ** stream.uniform(-5, -3.5)
    assert 8 <= second.batch <= 45
    assert 0.1 <= second.method_settings["gamma"] <= 10


def test_learning_rates_are_drawn_around_the_default_of_data_and_optimizer() -> None:
    drawn = {
        words: with_draws([Recipe(data=words[0], optimizer=words[1], base=words[2], target="art")], 2)[1].lr
        for words in (("PACS", "adam", "adam"), ("shapes", "adam", "adam"), ("PACS", "sam", "sgd"))
    }
    adam, embedded, sgd = drawn.values()
    assert embedded / adam == pytest.approx(3e-3 / 5e-5)
    assert sgd / adam == pytest.approx(20)


def test_a_draw_does_not_depend_on_what_else_is_searched() -> None:
    plain, sharp = Recipe(target="art"), Recipe(target="art", optimizer="mecam", method="irm")
    assert with_draws([plain], 2)[1].weight_decay == with_draws([sharp], 2)[1].weight_decay


def stream(draw: int, trial: int, name: str) -> np.random.RandomState:
    return np.random.RandomState(seed_hash(seed_hash(draw, trial), name))


@pytest.mark.parametrize("method", ["dann", "cdann"])
def test_adversarial_draws_are_domainbeds(method: str) -> None:
    """Rates and decays of network and discriminator, and the two dropouts, come from streams of their own."""
    recipes = with_draws([Recipe(data="PACS", method=method, target="art", seed=1)], 20)
    for draw, recipe in enumerate(recipes[1:], start=1):

        def uniform(name: str, low: float, high: float, base: int = 10, draw: int = draw) -> float:
            return float(base ** stream(draw, 1, name).uniform(low, high))

        def choice(name: str, *values: float, draw: int = draw) -> float:
            return float(stream(draw, 1, name).choice(values))

        assert recipe.lr == uniform("lr_g", -5, -3.5)
        assert recipe.weight_decay == uniform("weight_decay_g", -6, -2)
        assert recipe.dropout == choice("resnet_dropout", 0, 0.1, 0.5)
        assert recipe.batch == int(uniform("batch_size", 3, 5.5, 2))
        assert recipe.method_settings == {
            "lam": uniform("lambda", -2, 2),
            "gp": uniform("grad_penalty", -2, 1),
            "k": int(uniform("d_steps_per_g_step", 0, 3, 2)),
            "beta1": choice("beta1", 0, 0.5),
            "width": int(uniform("mlp_width", 6, 10, 2)),
            "depth": int(choice("mlp_depth", 3, 4, 5)),
            "dropout": choice("mlp_dropout", 0, 0.1, 0.5),
            "lr_d": uniform("lr_d", -5, -3.5),
            "weight_decay_d": uniform("weight_decay_d", -6, -2),
        }
    assert any(recipe.dropout != recipe.method_settings["dropout"] for recipe in recipes[1:])


@pytest.mark.parametrize(("data", "most"), [("DomainNet", 32), ("folder/domain_net", 32), ("PACS", 45), ("mine", 45)])
def test_batches_on_domainnet_are_drawn_up_to_32(data: str, most: int) -> None:
    recipes = with_draws([Recipe(data=data, target="clip")], 60)[1:]
    highest = 5 if most == 32 else 5.5
    assert [r.batch for r in recipes] == [
        int(2 ** stream(draw, 0, "batch_size").uniform(3, highest)) for draw in range(1, 60)
    ]
    assert most - 6 < max(recipe.batch for recipe in recipes) <= most


def test_own_rates_are_drawn_in_absolute_terms_around_the_default_of_the_data() -> None:
    recipes = [Recipe(data=data, method="lpft", target="art") for data in ("PACS", "shapes")]
    found = [with_draws([recipe], 2)[1].method_settings["linear_lr"] for recipe in recipes]
    drawn = 10 ** stream(1, 0, "linear_lr").uniform(-5, -3.5)
    assert found == [drawn, pytest.approx(drawn * 3e-3 / 5e-5)]


def test_draws_of_fish_are_of_fish() -> None:
    """DomainBed's lr and weight_decay are the inner Adam's, its meta_lr is our lr; the outer step stays plain."""
    recipe = Recipe(data="PACS", method="fish", target="art")
    for draw, drawn in enumerate(with_draws([recipe], 5)[1:], start=1):
        assert not is_variant(drawn)
        assert drawn.lr == stream(draw, 0, "meta_lr").choice([0.05, 0.1, 0.5])
        inner = 10 ** stream(draw, 0, "lr").uniform(-5, -3.5)
        assert drawn.method_settings == {"inner_lr": pytest.approx(inner, rel=1e-12)}
        assert drawn.weight_decay == 10 ** stream(draw, 0, "weight_decay").uniform(-6, -2)
        assert drawn.optimizer_settings == {"momentum": 0.0, "weight_decay": 0.0}


@pytest.mark.parametrize("method", list(METHODS))
def test_what_is_drawn_is_allowed(method: str) -> None:
    for recipe in with_draws([Recipe(method=method, optimizer="gsam", target="art")], 6):
        for name, value in recipe.method_settings.items():
            METHODS[method].hyperparameters[name].check(method, name, value)
        for name, value in recipe.optimizer_settings.items():
            OPTIMIZERS["gsam"].hyperparameters[name].check("gsam", name, value)
