"""A disk that takes its time changes nothing but the time."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from mecam.data.shapes import ShapesSet, shapes
from mecam.recipe import Recipe
from mecam.training import loop

RECIPE = Recipe(target="art", steps=3, evaluate_every=1, batch=2, image_size=8)
FILES = ("run.json", "records.jsonl", "model.safetensors", "predictions.safetensors", "done.json")


@pytest.mark.attack("Load")
def test_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sync and every read of images waits."""
    data = shapes(per_class=2)
    whole = loop.train(RECIPE, tmp_path / "whole", device="cpu", data=data)
    waited: list[str] = []

    def slowly(name: str, real: Any) -> Any:
        def call(*args: Any) -> Any:
            waited.append(name)
            time.sleep(0.01)
            return real(*args)

        return call

    monkeypatch.setattr(os, "fsync", slowly("write", os.fsync))
    monkeypatch.setattr(ShapesSet, "images", slowly("read", ShapesSet.images))
    monkeypatch.setattr(loop, "SAVE_EVERY", 0.0)
    slow = loop.train(RECIPE, tmp_path / "slow", device="cpu", data=data)
    assert {"read", "write"} == set(waited)
    assert [(slow.path / name).read_bytes() for name in FILES] == [(whole.path / name).read_bytes() for name in FILES]
