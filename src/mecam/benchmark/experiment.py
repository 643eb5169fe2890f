"""Expand options or an experiment file into runs, and run those that are missing."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mecam.benchmark import plan, search, settings
from mecam.benchmark.estimate import Budget
from mecam.benchmark.jobs import Engine
from mecam.benchmark.local import LocalEngine
from mecam.benchmark.records_file import Record, add_records, read_measurements, read_records
from mecam.data import known
from mecam.data.domains import DataError, HasDomains, check_several, domain_index
from mecam.data.notes import warn_about
from mecam.data.open import locate, open_data
from mecam.data.pack import require_outside
from mecam.methods import METHODS
from mecam.progress import Event, Progress, showing, shown, silent
from mecam.recipe import READING, Recipe, RecipeError, assign, entry_kind, names_in, option, spelled
from mecam.runs import RunFolder
from mecam.storage.files import make_folder, open_plain, writing
from mecam.training.build import check_parts, check_start, starts_at_random

if TYPE_CHECKING:
    from mecam.benchmark.ray_engine import RayEngine

Opened = Callable[[HasDomains], object]
DEFAULT = {"target": plan.ALL, "seed": [0, 1, 2]}
LOG = "bench.log"
TASK = "benchmark"
GRIDS = {"none": None, "paper": False, "ordered": True}


@dataclass
class Outcome:
    """The outcome of a benchmark."""

    runs: int
    before: int  # runs that were finished already
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # error by run id
    stopped: list[str] = field(default_factory=list)
    warnings: dict[str, str] = field(default_factory=dict)  # by run id: the other circumstances it resumed under


def bench(
    experiment: Path | str | None = None,
    *,
    set: Sequence[str] = (),
    small: bool = False,
    draws: int = 1,
    grid: str = "none",
    probe: bool = False,
    out: Path | str = "bench",
    engine: Engine | str = "local",
    workers: int | None = None,
    device: str = "auto",
    records: Path | str | None = None,
    minutes: float | None = None,
    measure: str | Sequence[str] = (),
    progress: Progress | bool = False,
    **entries: Any,
) -> Outcome:
    """Run `mecam bench` from Python, with the options of the command line.

    An engine given as an object keeps its own `after` and `budget`.

    Args:
        progress: True shows progress as the command does. A function gets the events of all runs.
        entries: entries of the recipe, and `seeds`. A list, or a string with commas, runs each of its values:
            `optimizer=["adam", "mecam"]`.
    """
    from mecam.analysis.after_run import measure_names

    file = None if experiment is None else Path(experiment)
    recipes = plan_runs(file, entries, set, small=small, draws=draws, grid=grid, probe=probe, opened=warn_about)
    names, known = measure_names(measure), None if records is None else Path(records)
    if isinstance(engine, str):
        options: dict[str, Any] = {"workers": workers, "measure": names, "minutes": minutes, "records": known}
        engine = make_engine(engine, Path(out), device, **options)
    if progress is True:
        rest = missing(recipes, Path(out), records=read_records(known), measure=names)
        view = shown_and_logged(len(recipes), len(recipes) - len(rest), Path(out))
    else:
        view = showing(progress)
    with view as show:
        return run_missing(recipes, out, engine=engine, progress=show, records=known, measure=names)


def plan_runs(
    experiment: Path | None,
    entries: Mapping[str, Any],
    assignments: Sequence[str] = (),
    *,
    small: bool = False,
    draws: int = 1,
    grid: str = "none",
    absent: bool = False,
    probe: bool = False,
    opened: Opened | None = None,
) -> list[Recipe]:
    """Expand the options into runs; with `absent`, also those on benchmarks that are not on this machine.

    With `probe`, a head on the frozen backbone is added for each data set, target, seed and pretrained backbone.
    `opened` gets each data set.
    """
    if draws < 1:
        raise RecipeError(f"--draws {draws} is not allowed; it must be at least 1")
    if grid not in GRIDS:
        raise RecipeError(f"there is no grid {grid!r}; there are {', '.join(GRIDS)}")
    blocks: Sequence[Mapping[str, Any]] = [DEFAULT]
    if experiment is not None:
        read = plan.read(experiment)
        blocks = plan.shrink(read).blocks if small else [{**DEFAULT, **block} for block in read.blocks]
    elif small:
        raise RecipeError("--small needs an experiment, such as recipes/table3.toml")
    given = {"seed" if name == "seeds" else name: _values(name, words) for name, words in entries.items()}
    given = {name: value for name, value in given.items() if value is not None}
    for assignment in assignments:
        assign(given, assignment)
    recipes = runs_of(settings.merge(blocks, given), absent=absent, opened=opened)
    if (ordered := GRIDS[grid]) is not None:
        other = next((recipe.optimizer for recipe in recipes if recipe.optimizer != "mecam"), None)
        if other is not None:
            raise RecipeError(f"--grid {grid} is a grid of mecam, got {other}; give --optimizer mecam")
        recipes = search.with_grid(recipes, search.paper_grid(ordered=ordered))
    for recipe in {str({**r.to_dict(), "data": 0, "target": 0, "seed": 0}): r for r in recipes}.values():
        check_parts(recipe)
    return [*(_probes(recipes) if probe else ()), *search.with_draws(recipes, draws)]


def _probes(recipes: Sequence[Recipe]) -> list[Recipe]:
    """Return the heads on frozen features that these runs are compared with; none without pretrained weights."""
    shared = (
        *("data", "target", "sources", "seed", "backbone", "weights", "pretrained", "image_size", "resize", "holdout"),
        *READING,
    )
    probes: dict[str, Recipe] = {}
    for recipe in recipes:
        if not starts_at_random(recipe):
            probe = Recipe(**{name: getattr(recipe, name) for name in shared}, trainable="head")
            probes.setdefault(probe.run_id, probe)
    known = {recipe.run_id for recipe in recipes}
    return [probe for run_id, probe in probes.items() if run_id not in known]


def runs_of(blocks: Sequence[Mapping[str, Any]], *, absent: bool = False, opened: Opened | None = None) -> list[Recipe]:
    """Expand the blocks into runs. Open their data sets, which packs them on first use: before any run needs them.

    With `absent`, a benchmark of the paper need not be there: its domains are known. `opened` gets each data set.
    """
    sets: dict[tuple[str, ...], HasDomains] = {}

    def data_of(values: Mapping[str, Any]) -> HasDomains:
        name = spelled(values.get("data", Recipe.data))
        how = {entry: values.get(entry, getattr(Recipe, entry)) for entry in READING}
        key = name, *map(str, how.values())
        if key not in sets:
            sets[key] = _open(name, how, absent=absent)
            check_several(sets[key])
            if opened is not None:
                opened(sets[key])
        return sets[key]

    recipes = plan.expand(blocks, lambda values: data_of(values).domains)
    for recipe in recipes:
        data = data_of(vars(recipe))
        if recipe.target is not None:
            _require_domain(data, recipe.target)
    return recipes


def _require_domain(data: HasDomains, target: str) -> None:
    try:
        domain_index(data, target)
    except DataError as error:
        if any("," in name for name in data.domains):
            raise DataError(f"{error} On the command line, a comma in a name is written \\,") from None
        raise


def _open(data: str, how: Mapping[str, Any], *, absent: bool) -> HasDomains:
    if absent and known.is_known(data):
        try:
            locate(data)
        except DataError:
            return known.find(data)
    return open_data(data, **how)


def missing(
    recipes: Sequence[Recipe],
    out: Path,
    *,
    records: Mapping[str, Record] | None = None,
    measure: Sequence[str] = (),
) -> list[Recipe]:
    """Return the runs that are not finished here or in the records, and those here that lack a measurement."""
    known = records or {}

    def is_complete(recipe: Recipe) -> bool:
        path, record = out / recipe.run_id, known.get(recipe.run_id)
        if not RunFolder(path).is_done():
            return record is not None
        return set(measure) <= {*read_measurements(path), *(() if record is None else record.measurements)}

    return [recipe for recipe in recipes if not is_complete(recipe)]


def check_starts(recipes: Sequence[Recipe], out: Path) -> None:
    """Refuse results among the images, and random initial weights without --no-pretrained; begun runs resume."""
    for recipe in recipes:
        if not RunFolder(out / recipe.run_id).run_file.exists():
            check_start(recipe)
            if Path(recipe.data).is_dir():
                require_outside(out, Path(recipe.data))


def make_engine(
    name: str,
    out: Path,
    device: str,
    *,
    measure: Sequence[str] = (),
    minutes: float | None = None,
    records: Path | None = None,
    workers: int | None = None,
    **cluster: Any,
) -> LocalEngine | RayEngine:
    """Return the engine of this name; `workers` is for local, `cluster` (address, cpus, gpus, shared) for ray."""
    from mecam.analysis.after_run import after_run

    budget = None if minutes is None else Budget(minutes, out, records=read_records(records), measure=measure)
    common: dict[str, Any] = {"device": device, "after": after_run(measure), "budget": budget}
    if name == "local":
        return LocalEngine(workers=workers, **common)
    if name == "ray":
        from mecam.benchmark.ray_engine import RayEngine

        return RayEngine(**cluster, **common)
    raise RecipeError(f"there is no engine {name!r}; there are local and ray")


def run_missing(
    recipes: Sequence[Recipe],
    out: Path | str,
    *,
    engine: Engine | None = None,
    progress: Progress = silent,
    records: Path | None = None,
    measure: Sequence[str] = (),
) -> Outcome:
    """Run the recipes that are missing in `out`.

    Args:
        records: a records file. Its runs are not repeated; those that finish, or have finished here, are added to it.
        measure: what the engine's `after` measures; finished runs that lack some of it are measured now.
    """
    out = Path(out)
    rest = missing(recipes, out, records=read_records(records), measure=measure)
    check_starts(rest, out)
    out.mkdir(parents=True, exist_ok=True)
    outcome = Outcome(len(recipes), len(recipes) - len(rest))
    if records is not None:
        add_records(records, [path for r in recipes if RunFolder(path := out / r.run_id).is_done()])

    def note(event: Event) -> None:
        if event.kind == "done":
            outcome.done.append(event.task)
            if records is not None:
                add_records(records, [out / event.task])
        elif event.kind == "failed":
            outcome.failed[event.task] = event.text
        elif event.kind == "stopped":
            outcome.stopped.append(event.task)
        elif event.kind == "warning":
            outcome.warnings[event.task] = event.text
        progress(event)

    if rest:
        (engine or LocalEngine()).run(rest, out, note)
    return outcome


@contextmanager
def shown_and_logged(total: int, finished: int, out: Path) -> Iterator[Progress]:
    """Yield the progress function for `bench`: a bar per run on a terminal, a line per event elsewhere.

    Events other than progress also go to the log in `out`. A run that another process claims is reported at every
    check, and shown once.
    """
    counts, elsewhere = Counter(done=finished), set[str]()
    make_folder(out)
    with (
        writing(out / LOG),
        open(out / LOG, "a", encoding="utf-8", errors="backslashreplace", opener=open_plain) as log,
        shown(lines=lambda e: e.kind != "progress" or e.task == TASK) as show,
    ):

        def board() -> Event:
            failed = [f"{counts['failed']} failed"] if counts["failed"] else []
            claimed = [f"{len(elsewhere)} in another process"] if elsewhere else []
            return Event(TASK, counts["done"], total, "runs done", ", ".join(failed + claimed))

        def progress(event: Event) -> None:
            if event.kind == "elsewhere" and event.task in elsewhere:
                return
            before = board()
            counts[event.kind] += 1
            (elsewhere.add if event.kind == "elsewhere" else elsewhere.discard)(event.task)
            if event.kind != "progress":
                log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {event.line()}\n")
                log.flush()
            show(event)
            if board() != before:
                show(board())

        show(board())
        yield progress


def _values(name: str, words: Any) -> Any:
    """Return "adam,sam" as a list, and a single word as itself; numbers as numbers."""
    if name == "sources":
        return words  # all of them are one run's
    kind = int if name == "seeds" else entry_kind(name).type
    if isinstance(words, str) and not (name == "data" and os.path.isdir(os.path.expanduser(words))):
        try:
            words = [kind(word) if kind in (int, float) else word.strip() for word in names_in(words)]
        except ValueError:
            example = "whole numbers such as 0,1,2" if kind is int else "numbers such as 0.1,0.2"
            raise RecipeError(f"{option(name)} {words} is not a list of {example}") from None
    values = list(words) if isinstance(words, (list, tuple, range)) else [words]
    values = [str(value) if isinstance(value, Path) else value for value in values]
    if name == "method" and values == [plan.ALL]:
        return list(METHODS)
    return values[0] if len(values) == 1 else values
