"""`mecam bench`: expand, run what is missing, tell how it went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mecam.benchmark.jobs import Engine, Event, Watch
from mecam.benchmark.local import LocalEngine
from mecam.benchmark.plan import data_sets, expand
from mecam.data.domains import source_domains
from mecam.data.open import open_data
from mecam.data.pack import OnError
from mecam.recipe import Recipe
from mecam.runs import RunFolder


@dataclass
class Outcome:
    """How a benchmark ended."""

    runs: int
    before: int  # runs that were finished already
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # run id: what happened
    stopped: list[str] = field(default_factory=list)
    warnings: dict[str, str] = field(default_factory=dict)  # run id: resumed under which other circumstances


def runs_of(blocks: Sequence[Mapping[str, Any]], *, on_error: OnError = "refuse") -> list[Recipe]:
    """The runs of these blocks. Opens their data sets, which packs them on first use: before any run needs them."""
    sets = {name: open_data(name, on_error=on_error) for name in data_sets(blocks)}
    recipes = expand(blocks, {name: data.domains for name, data in sets.items()})
    for data, target in {(recipe.data, recipe.target) for recipe in recipes}:
        source_domains(sets[data], target)  # refuses a domain that is not there
    return recipes


def missing(recipes: Sequence[Recipe], out: Path) -> list[Recipe]:
    """The runs that are not finished in this folder."""
    return [recipe for recipe in recipes if not RunFolder(out / recipe.run_id).is_done()]


def bench(
    recipes: Sequence[Recipe], out: Path | str, *, engine: Engine | None = None, watch: Watch | None = None
) -> Outcome:
    """Run what is missing of the recipes in `out`."""
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    rest = missing(recipes, out)
    outcome = Outcome(len(recipes), len(recipes) - len(rest))

    def note(event: Event) -> None:
        if event.kind == "done":
            outcome.done.append(event.run_id)
        elif event.kind == "failed":
            outcome.failed[event.run_id] = event.message
        elif event.kind == "stopped":
            outcome.stopped.append(event.run_id)
        elif event.kind == "warning":
            outcome.warnings[event.run_id] = event.message
        if watch is not None:
            watch(event)

    if rest:
        (engine or LocalEngine()).run(rest, out, note)
    return outcome
