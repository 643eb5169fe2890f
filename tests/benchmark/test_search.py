"""The searches: sizes, streams, and what may be drawn."""

import numpy as np
import pytest

from mecam.benchmark.search import paper_grid, with_draws, with_grid
from mecam.data.splits import seed_hash
from mecam.methods import METHODS
from mecam.optim.registry import OPTIMIZERS
from mecam.recipe import make


def test_the_grid_has_192_points_and_120_are_ordered() -> None:
    assert len(paper_grid()) == 192
    ordered = paper_grid(ordered=True)
    assert len(ordered) == 120
    assert all(p["optimizer_settings"]["beta"] <= p["optimizer_settings"]["alpha"] for p in ordered)


def test_the_grid_multiplies_recipes_and_keeps_other_settings() -> None:
    recipe = make({"optimizer": "mecam", "target": "art", "optimizer_settings": {"betas": [0.5, 0.9]}})
    found = with_grid([recipe], paper_grid()[:3])
    assert len({r.run_id for r in found}) == 3
    assert found[0].optimizer_settings == {"betas": [0.5, 0.9], "rho": 0.01, "alpha": 0.05, "beta": 0.05}


def test_the_first_draw_is_the_recipe_and_the_streams_are_domainbeds() -> None:
    recipe = make({"data": "PACS", "method": "coral", "target": "art", "seed": 2})
    first, second = with_draws([recipe], 2)
    assert first == recipe
    stream = np.random.RandomState(seed_hash(seed_hash(1, 2), "lr"))
    assert second.lr == 10 ** stream.uniform(-5, -3.5)
    assert 8 <= second.batch <= 45
    assert 0.1 <= second.method_settings["gamma"] <= 10


def test_learning_rates_are_drawn_around_the_default_of_data_and_optimizer() -> None:
    drawn = {
        words: with_draws([make({"data": words[0], "optimizer": words[1], "base": words[2], "target": "art"})], 2)[1].lr
        for words in (("PACS", "adam", "adam"), ("shapes", "adam", "adam"), ("PACS", "sam", "sgd"))
    }
    adam, embedded, sgd = drawn.values()
    assert embedded / adam == pytest.approx(3e-3 / 5e-5)
    assert sgd / adam == pytest.approx(20)


def test_a_draw_does_not_depend_on_what_else_is_searched() -> None:
    plain, sharp = make({"target": "art"}), make({"target": "art", "optimizer": "mecam", "method": "irm"})
    assert with_draws([plain], 2)[1].weight_decay == with_draws([sharp], 2)[1].weight_decay


@pytest.mark.parametrize("method", list(METHODS))
def test_what_is_drawn_is_allowed(method: str) -> None:
    for recipe in with_draws([make({"method": method, "optimizer": "gsam", "target": "art"})], 6):
        for name, value in recipe.method_settings.items():
            METHODS[method].hyperparameters[name].check(method, name, value)
        for name, value in recipe.optimizer_settings.items():
            OPTIMIZERS["gsam"].hyperparameters[name].check("gsam", name, value)
