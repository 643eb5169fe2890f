"""`mecam bench`: expand, run what is missing, tell how it went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mecam.benchmark.jobs import Engine, Event, Watch
from mecam.benchmark.local import LocalEngine
from mecam.benchmark.plan import data_sets, expand
from mecam.data import known
from mecam.data.domains import DataError, HasDomains, domain_index
from mecam.data.open import locate, open_data
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


def runs_of(blocks: Sequence[Mapping[str, Any]], *, on_error: OnError = "refuse", absent: bool = False) -> list[Recipe]:
    """Expand the blocks into runs. Open their data sets, which packs them on first use: before any run needs them.

    With `absent`, a benchmark of the paper need not be there: its domains are known.
    """
    sets: dict[str, HasDomains] = {}
    for name in data_sets(blocks):
        sets[name] = known.find(name) if absent and is_absent(name) else open_data(name, on_error=on_error)
    recipes = expand(blocks, {name: data.domains for name, data in sets.items()})
    for data, target in {(recipe.data, recipe.target) for recipe in recipes}:
        if target is not None:
            domain_index(sets[data], target)  # refuses a domain that is not there
    return recipes


def is_absent(data: str) -> bool:
    """Whether this is the name of a benchmark that is not on this machine."""
    if not known.is_known(data):
        return False
    try:
        locate(data)
    except DataError:
        return True
    return False


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
