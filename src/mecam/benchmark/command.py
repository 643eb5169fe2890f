"""What `mecam bench` and `mecam table` do, in words of the command line. What needs torch is imported where used."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mecam import recipe as one_run
from mecam.benchmark import paper, plan, results, tables, view
from mecam.benchmark.jobs import Engine
from mecam.benchmark.render import render
from mecam.recipe import Recipe, RecipeError
from mecam.runs import RunError

if TYPE_CHECKING:
    from mecam.benchmark.bench import Outcome

DEFAULT = {"target": plan.ALL, "seed": [0, 1, 2]}
NUMBERS = ("steps", "seed")
GRIDS = {"none": None, "paper": False, "ordered": True}


def recipes(
    experiment: Path | None,
    given: Mapping[str, str | None],
    assignments: Sequence[str] = (),
    *,
    small: bool = False,
    draws: int = 1,
    grid: str = "none",
) -> list[Recipe]:
    """The runs that the words mean."""
    from mecam.benchmark import search
    from mecam.benchmark.bench import runs_of

    if draws < 1:
        raise RecipeError(f"--draws {draws} is not allowed; it must be at least 1")
    if grid not in GRIDS:
        raise RecipeError(f"there is no grid {grid!r}; there are {', '.join(GRIDS)}")
    blocks: Sequence[Mapping[str, Any]] = [DEFAULT]
    if experiment is not None:
        read = plan.read(experiment)
        blocks = (plan.shrink(read) if small else read).blocks
    elif small:
        raise RecipeError("--small is a version of an experiment; give one, such as recipes/table3.toml")
    values = {name: _listed(name, text) for name, text in given.items() if text is not None}
    for assignment in assignments:
        one_run.assign(values, assignment)
    found = runs_of(plan.override(blocks, values))
    for recipe in {(r.method, r.optimizer, r.averaging, r.backbone, r.virtual): r for r in found}.values():
        one_run.check_parts(recipe)
    ordered = GRIDS[grid]
    if ordered is not None:
        found = search.with_grid(found, search.paper_grid(ordered=ordered))
    return search.with_draws(found, draws)


def engine(
    name: str, *, workers: int | None, device: str, address: str | None = None, cpus: float = 1, gpus: float = 0
) -> Engine:
    """The engine of this name; address, cpus and gpus (a run's share) are Ray's, workers the local one's."""
    if name == "local":
        from mecam.benchmark.local import LocalEngine

        return LocalEngine(workers=workers, device=device)
    if name == "ray":
        from mecam.benchmark.ray_engine import RayEngine

        return RayEngine(address=address, device=device, cpus=cpus, gpus=gpus)
    raise RecipeError(f"there is no engine {name!r}; there are local and ray")


def forecast(recipes: Sequence[Recipe], out: Path, device: str = "auto") -> list[str]:
    """What would run, and for how long, one run after another."""
    from mecam.benchmark import estimate
    from mecam.benchmark.bench import missing

    rest = missing(recipes, out)
    taken = estimate.seconds(rest, out, device)
    lines = [f"{recipe.run_id}  {view.clock(taken[recipe.run_id])}" for recipe in rest]
    total = view.clock(sum(taken.values()))
    return [*lines, f"{len(rest)} runs to do, {len(recipes) - len(rest)} done; {total} one after another"]


def run(recipes: Sequence[Recipe], out: Path, engine: Engine) -> int:
    """Run what is missing, print the table, name what failed; the exit code."""
    from mecam.benchmark.bench import bench, missing

    with view.watching(len(recipes), len(recipes) - len(missing(recipes, out)), out) as watch:
        outcome = bench(recipes, out, engine=engine, watch=watch)
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
    """The table of a benchmark's folder, or of these runs in it; and what could not be read."""
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
    notes = _departures(found) if compare == "paper" else []
    if any(result.recipe.method in ("arm", "mtl") for result in found):
        notes.append("ARM and MTL see the other images of a batch, here in fixed order.")
    return render(rows, form, spread=spread, baseline=baseline, compare=compare, notes=notes), problems  # type: ignore[arg-type]


def _departures(found: Sequence[results.Result]) -> list[str]:
    """In what our runs differ from the published setting."""
    named = dict.fromkeys(words for result in found for words in paper.departures(result.recipe))
    return [f"Ours differ from the published setting: {'; '.join(named)}."] if named else []


def _told(outcome: Outcome, out: Path) -> int:
    from mecam.benchmark.worker import log_tail

    for run_id, message in outcome.failed.items():
        print(f"\nmecam: {run_id} failed: {message}\n{log_tail(out, run_id)}", file=sys.stderr)
    if outcome.stopped:
        print(f"mecam: stopped; {len(outcome.stopped)} runs are left. The same command goes on.", file=sys.stderr)
        return 130
    if outcome.failed:
        print(f"mecam: {len(outcome.failed)} of {outcome.runs} runs failed; their logs are in {out}", file=sys.stderr)
        return 1
    return 0


def _listed(name: str, text: str) -> Any:
    """ "adam,sam" as a list; a single word as itself."""
    words = [word.strip() for word in text.split(",")]
    if name == "method" and words == [plan.ALL]:
        from mecam.methods import METHODS

        return list(METHODS)
    if name in NUMBERS:
        try:
            found: list[Any] = [int(word) for word in words]
        except ValueError:
            option = "seeds" if name == "seed" else name
            raise RecipeError(f"--{option} {text} is not a list of whole numbers such as 0,1,2") from None
        return found if len(found) > 1 else found[0]
    return words if len(words) > 1 else words[0]
