"""Damaged files are named, or do no harm. Many more of it: make torture."""

import random
from pathlib import Path

import pytest

from tests.reliability.damage import WAYS, fuzz, mutate

CONTENT, OTHER = bytes(range(100)), b"other"


@pytest.mark.parametrize("way", WAYS)
def test_mutations_change_something(way: str) -> None:
    assert mutate(random.Random(0), way, CONTENT, OTHER) != CONTENT


@pytest.mark.attack("Damage")
def test_damage_is_named_or_does_no_harm(tmp_path: Path) -> None:
    findings = fuzz(tmp_path, 60, seed=0)
    assert findings.wrong == []
    assert findings.mutations >= 50
    assert findings.answers["error"] > 30, "most damage is found, and not read over"
