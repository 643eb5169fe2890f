"""Read and write the training time of runs: `timing.json` in their folders."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from mecam.recipe import Recipe
from mecam.runs import RunError, write_atomic

TIMING = "timing.json"
Kind = tuple[object, ...]


@dataclass(frozen=True)
class Timing:
    """Training time of a run over its sessions, without those that were killed."""

    seconds: float
    steps: int


def read_timing(folder: Path) -> Timing | None:
    """Return the time of a run; None if it was not taken."""
    with suppress(OSError, ValueError, TypeError):
        return Timing(**json.loads((folder / TIMING).read_bytes()))
    return None


def add_timing(folder: Path, seconds: float, steps: int) -> None:
    """Add the time of a session. A failure to write is ignored: the run is worth more than its time."""
    before = read_timing(folder) or Timing(0.0, 0)
    content = json.dumps(asdict(Timing(before.seconds + seconds, before.steps + steps)))
    with suppress(RunError, OSError):
        write_atomic(folder / TIMING, content.encode())


def kind_of(recipe: Recipe) -> Kind:
    """Return what the time of a step depends on."""
    return recipe.data, recipe.backbone, recipe.method, recipe.optimizer, recipe.batch, recipe.image_size
