"""A log of what packing decodes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mecam.data import pack as packing

Decoded = Callable[[], list[str]]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Decoded:
    """The names of the images decoded so far, by any process."""
    log = tmp_path / "decoded.log"
    log.touch()
    original = packing.resample

    def resample(source: Any, *, name: str, size: tuple[int, int]) -> Any:
        with log.open("a") as file:
            file.write(name + "\n")
        return original(source, name=name, size=size)

    monkeypatch.setattr(packing, "resample", resample)
    return lambda: log.read_text().splitlines()
