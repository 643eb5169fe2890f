"""Any value of any entry of a recipe gives a recipe or a message, never a traceback."""

import json
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mecam.data.domains import DataError
from mecam.data.open import open_data
from mecam.data.shapes import shapes
from mecam.recipe import Recipe, RecipeError, assign, departures, entry_kind
from mecam.runs import RunError
from mecam.training.machine import find_machine
from mecam.training.run import Run

NAMES = sorted(Recipe.__dataclass_fields__.keys() - {"profile"})
SPOKEN = (ValueError, RunError, OSError, ImportError)  # what the command prints as one line
DATA = shapes(per_class=2)
text = st.text(st.characters(), max_size=8) | st.sampled_from(
    [
        "",
        "\0",
        "~nobody-here/x",
        "\udcff",
        "../..",
        "/dev/null",
        "nan",
        "a" * 5000,
        "%s{0}",
        "[",
        "(?P<",
        "exif:",
        "art,",
    ]
)
numbers = st.integers() | st.sampled_from([0, -1, 1, 2**31, 2**63, 2**64, 10**400]) | st.floats()
leaves = st.none() | st.booleans() | numbers | text
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3))
quick = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.attack("Hosts")
@quick
@given(st.dictionaries(st.sampled_from(NAMES), values, min_size=1, max_size=3))
def test_any_entries(entries: dict[str, Any]) -> None:
    try:
        recipe = Recipe(**entries)
    except RecipeError:
        return
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))).run_id == recipe.run_id
    assert "/" not in recipe.run_id
    repr(recipe)
    assert Recipe(**departures(recipe)).run_id == recipe.run_id


@pytest.mark.attack("Hosts")
@quick
@given(text)
def test_any_assignment(words: str) -> None:
    for line in (words, f"lr={words}", f"optimizer_settings.{words}=1", f"data={words}"):
        entries: dict[str, Any] = {}
        with suppress(RecipeError):
            assign(entries, line)
            Recipe(**entries)


@pytest.mark.attack("Hosts")
@quick
@given(text)
def test_any_data(words: str) -> None:
    with suppress(DataError, OSError, ValueError):
        open_data(words)


SETTINGS = {
    "optimizer": ("adam", "sgd", "sam", "mecam"),
    "method": ("erm", "mixup", "irm"),
    "averaging": ("ema", "swad"),
}
KNOWN = ["rho", "alpha", "beta", "betas", "eps", "momentum", "decay", "penalty", "anneal", "every", "start", "lr", "k"]


@pytest.mark.attack("Hosts")
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_settings(draw: st.DataObject) -> None:
    """They are refused with a message when the run is built, if not before."""
    part = draw.draw(st.sampled_from(sorted(SETTINGS)))
    which = draw.draw(st.sampled_from(SETTINGS[part]))
    chosen = draw.draw(st.dictionaries(st.sampled_from(KNOWN) | text, values, min_size=1, max_size=2))
    small = {"target": "art", "steps": 1, "batch": 2, "image_size": 8}
    try:
        recipe = Recipe(**{**small, part: which, f"{part}_settings": chosen})
        Run(recipe, find_machine("cpu"), DATA)
    except SPOKEN:
        return
    finally:
        torch.manual_seed(0)


@pytest.mark.attack("Hosts")
@pytest.mark.parametrize("name", [name for name in NAMES if entry_kind(name).type in (int, float)])
@pytest.mark.parametrize("value", [-1, 2**63, 2**64, 10**400, 1e308, float("nan"), float("inf"), True])
def test_extreme_numbers(name: str, value: Any) -> None:
    small = {"target": "art", "steps": 1, "batch": 2, "image_size": 8}
    if name in ("batch", "lora_rank", "image_size") and value in (2**63, 2**64, 10**400):
        return  # the machine's memory is the limit
    with suppress(*SPOKEN):
        recipe = Recipe(**{**small, name: value})
        if recipe.steps < 10:
            Run(recipe, find_machine("cpu"), DATA)
