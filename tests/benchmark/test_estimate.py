"""How long runs will take, told from a step of each or, where steps are long, from one and the passes of the others."""

import math
from pathlib import Path

import pytest

from mecam.benchmark import estimate
from mecam.recipe import Recipe

RECIPES = [
    Recipe(target="sketch", optimizer=optimizer, steps=9, batch=2, evaluate_every=5) for optimizer in ("adam", "mecam")
]


def test_long_steps_are_told_from_one_by_their_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "LONG", 0.0)
    adam, mecam = estimate.seconds(RECIPES, tmp_path, "cpu").values()
    assert adam > 0
    assert mecam == pytest.approx(3 * adam)


def test_short_steps_are_all_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "LONG", math.inf)
    adam, mecam = estimate.seconds(RECIPES, tmp_path, "cpu").values()
    assert min(adam, mecam) > 0
    assert mecam != pytest.approx(3 * adam, rel=1e-9)
