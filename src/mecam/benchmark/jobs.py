"""What an engine does: run recipes into a folder, and tell what happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from mecam.recipe import Recipe

Kind = Literal["started", "progress", "warning", "done", "failed", "stopped", "elsewhere"]
ENDED = ("done", "failed", "stopped")
ELSEWHERE_EVERY = 2.0  # seconds between two looks at a run that another benchmark has claimed


@dataclass(frozen=True)
class Event:
    """Something that happened to a run."""

    run_id: str
    kind: Kind
    step: int = 0
    steps: int = 0
    accuracy: float | None = None  # on the sources' held-out parts, percent
    target: float | None = None  # on the unseen domain, percent
    message: str = ""  # of a failure or a warning
    worker: str = ""


Watch = Callable[[Event], None]


class Engine(Protocol):
    """Runs recipes. Every recipe ends in one event of ENDED; a failure of one does not stop the others."""

    def run(self, recipes: Sequence[Recipe], out: Path, watch: Watch) -> None: ...
