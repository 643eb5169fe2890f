"""`mecam bench` and `mecam table`. Modules that need torch are imported where used."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mecam import recipe as one_run
from mecam.benchmark import plan, results, settings, tables, view
from mecam.benchmark.jobs import Engine, Watch
from mecam.benchmark.render import render
from mecam.recipe import Recipe, RecipeError
from mecam.runs import RunError

if TYPE_CHECKING:
    from mecam.benchmark.bench import Outcome
    from mecam.data.pack import OnError

Words = str | int | Sequence[str] | Sequence[int] | None
DEFAULT = {"target": plan.ALL, "seed": [0, 1, 2]}
NUMBERS = ("steps", "seed")
GRIDS = {"none": None, "paper": False, "ordered": True}


def bench(
    experiment: Path | str | None = None,
    *,
    data: Words = None,
    target: Words = None,
    method: Words = None,
    optimizer: Words = None,
    averaging: Words = None,
    backbone: Words = None,
    profile: Words = None,
    steps: Words = None,
    seeds: Words = None,
    set: Sequence[str] = (),
    small: bool = False,
    draws: int = 1,
    grid: str = "none",
    out: Path | str = "bench",
    engine: Engine | str = "local",
    workers: int | None = None,
    device: str = "auto",
    skip_unreadable: bool = False,
    watch: Watch | None = None,
) -> Outcome:
    """Run `mecam bench` from Python, with the options of the command line; lists replace commas. Prints nothing.

    An engine given as an object keeps its own `on_error`.
    """
    from mecam.benchmark.bench import bench as run_missing

    given = {
        "data": data, "target": target, "method": method, "optimizer": optimizer, "averaging": averaging,
        "backbone": backbone, "profile": profile, "steps": steps, "seed": seeds,
    }  # fmt: skip
    file = None if experiment is None else Path(experiment)
    on_error: OnError = "skip" if skip_unreadable else "refuse"
    found = recipes(file, given, set, small=small, draws=draws, grid=grid, on_error=on_error)
    if isinstance(engine, str):
        engine = make_engine(engine, workers=workers, device=device, on_error=on_error)
    return run_missing(found, out, engine=engine, watch=watch)


def recipes(
    experiment: Path | None,
    given: Mapping[str, Words],
    assignments: Sequence[str] = (),
    *,
    small: bool = False,
    draws: int = 1,
    grid: str = "none",
    on_error: OnError = "refuse",
    absent: bool = False,
) -> list[Recipe]:
    """Expand the options into runs; with `absent`, also those on benchmarks that are not on this machine."""
    from mecam.benchmark import search
    from mecam.benchmark.bench import runs_of
    from mecam.training.build import check_parts

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
    values = {name: _listed(name, words) for name, words in given.items() if words is not None}
    for assignment in assignments:
        one_run.assign(values, assignment)
    found = runs_of(settings.merge(blocks, values), on_error=on_error, absent=absent)
    ordered = GRIDS[grid]
    if ordered is not None:
        other = next((recipe.optimizer for recipe in found if recipe.optimizer != "mecam"), None)
        if other is not None:
            raise RecipeError(f"--grid {grid} is a grid of mecam, got {other}; give --optimizer mecam")
        found = search.with_grid(found, search.paper_grid(ordered=ordered))
    for recipe in {str({**r.to_dict(), "data": 0, "target": 0, "seed": 0}): r for r in found}.values():
        check_parts(recipe)
    return search.with_draws(found, draws)


def make_engine(
    name: str,
    *,
    workers: int | None,
    device: str,
    address: str | None = None,
    cpus: float = 1,
    gpus: float = 0,
    shared: bool = False,
    on_error: OnError = "refuse",
) -> Engine:
    """The engine of this name. workers belongs to local; address, cpus and gpus (per run) and shared belong to ray."""
    if name == "local":
        from mecam.benchmark.local import LocalEngine

        return LocalEngine(workers=workers, device=device, on_error=on_error)
    if name == "ray":
        from mecam.benchmark.ray_engine import RayEngine

        return RayEngine(address=address, device=device, cpus=cpus, gpus=gpus, shared=shared, on_error=on_error)
    raise RecipeError(f"there is no engine {name!r}; there are local and ray")


def name_left_out(recipes: Sequence[Recipe]) -> None:
    """Report the unreadable images of the runs' data."""
    from mecam.data.open import open_data
    from mecam.training.command import name_left_out as name_of_one

    for data in sorted({recipe.data for recipe in recipes}):
        name_of_one(open_data(data, on_error="skip"))


def forecast(recipes: Sequence[Recipe], out: Path, device: str = "auto", *, on_error: OnError = "refuse") -> list[str]:
    """List the missing runs with their estimated time."""
    from mecam.benchmark import estimate
    from mecam.benchmark.bench import missing

    rest = missing(recipes, out)
    taken: dict[str, float] = {}
    reasons = []
    for data in dict.fromkeys(recipe.data for recipe in rest):
        try:
            among = [recipe for recipe in rest if recipe.data == data]
            taken |= estimate.seconds(among, out, device, on_error=on_error)
        except (ValueError, ImportError, OSError) as error:  # no data, or no weights, on this machine
            reasons.append(f"time on {data} cannot be estimated: {error}")
    lines = [f"{recipe.run_id}  {view.clock(taken[r]) if (r := recipe.run_id) in taken else '–'}" for recipe in rest]
    clock = f"{view.clock(sum(taken.values()))} in sequence" if taken or not rest else "time cannot be estimated"
    among_all = f", for {len(taken)} of them" if reasons and taken else ""
    return [*lines, *reasons, f"{len(rest)} runs to do, {len(recipes) - len(rest)} done; {clock}{among_all}"]


def run(recipes: Sequence[Recipe], out: Path, engine: Engine) -> int:
    """Run what is missing, print the table, report failures; return the exit code."""
    from mecam.benchmark.bench import bench as run_missing
    from mecam.benchmark.bench import missing

    with view.watching(len(recipes), len(recipes) - len(missing(recipes, out)), out) as watch:
        outcome = run_missing(recipes, out, engine=engine, watch=watch)
    if outcome.done or outcome.before:
        text, problems = table(out, only=recipes)
        for problem in problems:
            print(f"mecam: {problem}", file=sys.stderr)
        print(text)
    return _told(outcome, out)


def table(
    out: Path,
    *,
    form: str = "terminal",
    spread: str = "stderr",
    select: str = "none",
    baseline: str | None = None,
    compare: str | None = None,
    only: Sequence[Recipe] | None = None,
) -> tuple[str, list[str]]:
    """The table of a benchmark's folder, or of these runs in it, and messages about it."""
    for word, known, option in ((spread, tables.SPREADS, "spread"), (select, ("none", "shared", "target"), "select")):
        if word not in known:
            raise RecipeError(f"there is no {option} {word!r}; there are {', '.join(known)}")
    if not out.is_dir():
        raise RunError(f"there is no folder {out}; give the --out of mecam bench")
    found, problems = results.read(out)
    if only is not None:
        wanted = {recipe.run_id for recipe in only}
        found = [result for result in found if result.path.name in wanted]
    if not found:
        raise RunError(f"there is no run with a target in {out}" + "".join(f"; {problem}" for problem in problems))
    rows = tables.rows(found, spread=spread, select=select)  # type: ignore[arg-type]
    notes = [*results.changed_data(found), *(_chosen(row) for row in rows if row.chosen)]
    if any(result.recipe.method in ("arm", "mtl") for result in found):
        notes.append("Predictions of ARM and MTL depend on the other images of a batch; their order is fixed here.")
    if any(row.key.method_variant for row in rows):
        notes.append("fish variant: Fish itself takes its outer step by SGD without momentum and weight decay.")
    text = render(rows, form, spread=spread, baseline=baseline, compare=compare, notes=notes)  # type: ignore[arg-type]
    return text, [*problems, *results.mixed_circumstances(found), *(notes if form in ("csv", "json") else [])]


def _chosen(row: tables.Row) -> str:
    """The point that a grid search chose, and whether it has beta <= alpha, as the paper's optima do."""
    settings = row.results[0].recipe.optimizer_settings
    ordered = ""
    if "alpha" in settings and "beta" in settings:
        ordered = ", beta <= alpha" if settings["beta"] <= settings["alpha"] else ", beta > alpha"
    return f"{row.key.label} on {row.key.data}: {row.chosen} chosen by source validation{ordered}."


def _told(outcome: Outcome, out: Path) -> int:
    from mecam.benchmark.worker import log_tail

    for run_id, message in outcome.failed.items():
        print(f"\nmecam: {run_id} failed: {message}\n{log_tail(out, run_id)}", file=sys.stderr)
    if outcome.stopped:
        print(f"mecam: stopped; {len(outcome.stopped)} runs are left. The same command resumes them.", file=sys.stderr)
        return 130
    if outcome.failed:
        print(f"mecam: {len(outcome.failed)} of {outcome.runs} runs failed; their logs are in {out}", file=sys.stderr)
        return 1
    return 0


def _listed(name: str, given: Any) -> Any:
    """ "adam,sam" as a list; a single word as itself."""
    words = [word.strip() for word in given.split(",")] if isinstance(given, str) else given
    found: list[Any] = list(words) if isinstance(words, (list, tuple, range)) else [words]
    if name == "method" and found == [plan.ALL]:
        from mecam.methods import METHODS

        return list(METHODS)
    if name in NUMBERS:
        try:
            found = [int(word) for word in found]
        except ValueError:
            option = "seeds" if name == "seed" else name
            raise RecipeError(f"--{option} {given} is not a list of whole numbers such as 0,1,2") from None
    return found[0] if len(found) == 1 else found
