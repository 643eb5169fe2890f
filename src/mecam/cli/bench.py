"""`mecam bench`, `table`, `report` and `figures`."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mecam.cli._app import INTERRUPTED, command, warn
from mecam.cli.options import Device, Out, RecipeCommand, ResultsArgument, RunData, recipe_options
from mecam.columns import visible

if TYPE_CHECKING:
    from mecam.benchmark.experiment import Outcome


@command(
    "mecam bench --optimizer adam,sam,mecam --seeds 0 --out results",
    "mecam bench --data root --optimizer adam,mecam --averaging none,swad --out results",
    "mecam bench --target sketch --optimizer adam,mecam --set optimizer_settings.rho=[0.05,0.1] --out sweep",
    "mecam bench recipes/table3.toml --data PACS --dry-run",
    "mecam bench --data root --optimizer adam,mecam --profile domainbed --out results",
    "mecam bench --optimizer adam,mecam --records records.json --minutes 55 --out results",
    "mecam bench --data root --optimizer mecam --engine ray --address auto --gpus 1 --out results",
    resumes=True,
    cls=RecipeCommand,
)
@recipe_options(lists=True)
def bench(
    experiment: Annotated[Path | None, typer.Argument(help="A TOML experiment; the options below override it.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Set any recipe entry; a list sweeps it: --set lr=[1e-5,3e-5]", metavar="<entry=value>"
        ),
    ] = None,
    small: Annotated[bool, typer.Option("--small", help="Run the experiment's small version.")] = False,
    draws: Annotated[int, typer.Option(help="Random hyperparameter draws per run; the first is the defaults.")] = 1,
    grid: Annotated[
        str,
        typer.Option(help="Hyperparameter grid of MeCAM: none, paper (192 points) or ordered (120, beta <= alpha)."),
    ] = "none",
    probe: Annotated[
        bool, typer.Option("--probe", help="Add a head on the frozen backbone as a baseline, if it is pretrained.")
    ] = False,
    out: Out = Path("bench"),
    engine: Annotated[str, typer.Option(help="Where to run: local or ray.")] = "local",
    workers: Annotated[int | None, typer.Option(help="Parallel runs (local).")] = None,
    address: Annotated[str | None, typer.Option(help="Address of a Ray cluster. Default: start Ray here.")] = None,
    cpus: Annotated[float, typer.Option(help="CPUs reserved per run (Ray).")] = 1,
    gpus: Annotated[float, typer.Option(help="GPUs reserved per run (Ray); 0.5 lets two runs share one.")] = 0,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared", help="--out is a file system shared by all Ray nodes: lost runs resume from checkpoints."
        ),
    ] = False,
    device: Device = "auto",
    records: Annotated[
        Path | None, typer.Option(help="JSON file of finished runs: runs in it are not repeated, others are added.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Start no run that would not finish in time; save unfinished runs.")
    ] = None,
    measure: Annotated[
        str | None, typer.Option(help="Measure each run after training: curvature,eigenvalue,landscape.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs and their estimated time.")] = False,
    **entries: Any,
) -> int:
    """Train every combination with each domain left out in turn. The same command resumes unfinished runs."""
    from mecam.analysis.after_run import measure_names
    from mecam.benchmark.experiment import check_starts, make_engine, missing, plan_runs, run_missing, shown_and_logged
    from mecam.benchmark.records_file import read_records
    from mecam.data.notes import warn_about
    from mecam.data.open import SHAPES
    from mecam.training.build import starts_at_random

    recipes = plan_runs(
        experiment, entries, set_ or [], small=small, draws=draws, grid=grid, absent=dry_run, probe=probe,
        opened=partial(warn_about, warn=warn),
    )  # fmt: skip
    names = measure_names(measure or ())
    chosen = make_engine(
        engine, out, device, measure=names, minutes=minutes, records=records, workers=workers,
        address=address, cpus=cpus, gpus=gpus, shared=shared,
    )  # fmt: skip
    rest = missing(recipes, out, records=read_records(records), measure=names)
    done = len(recipes) - len(rest)
    if dry_run:
        from mecam.benchmark.estimate import forecast

        print("\n".join(forecast(rest, done, out, device)))
        return 0
    check_starts(rest, out)
    for backbone in sorted({recipe.backbone for recipe in rest if recipe.data != SHAPES and starts_at_random(recipe)}):
        print(f"{backbone}: random initial weights", file=sys.stderr)
    with shown_and_logged(len(recipes), done, out) as progress:
        outcome = run_missing(recipes, out, engine=chosen, progress=progress, records=records, measure=names)
    if outcome.done or outcome.before:
        _print_table(records or out, only=recipes)
    return _print_outcome(outcome, out, time_is_up=chosen.budget is not None and chosen.budget.is_spent)


def _print_outcome(outcome: Outcome, out: Path, *, time_is_up: bool) -> int:
    """Report failures and what is left; return the exit code."""
    from mecam.benchmark.worker import log_tail

    for run_id, message in outcome.failed.items():
        print(visible(f"\nmecam: {run_id} failed: {message}\n{log_tail(out, run_id)}"), file=sys.stderr)
    if outcome.stopped:
        why = "the time is up" if time_is_up else "stopped"
        warn(f"{why}; {len(outcome.stopped)} runs are left. The same command resumes them.")
        if not time_is_up:
            return INTERRUPTED
    if outcome.failed:
        warn(f"{len(outcome.failed)} of {outcome.runs} runs failed; their logs are in {out}")
        return 1
    if outcome.done:
        results = shlex.quote(str(out))
        print(f"runs: {out}; next: mecam report {results}, mecam table {results} --spread interval", file=sys.stderr)
    return 0


@command(
    "mecam table results --baseline adam",
    "mecam table results --format latex --spread std",
    "mecam table results --compare paper",
    "mecam table records.json --accuracy second-half",
)
def table(
    out: ResultsArgument,
    format: Annotated[str, typer.Option(help="Output format: terminal, markdown, latex, csv or json.")] = "terminal",
    spread: Annotated[str, typer.Option(help="Spread over seeds: stderr, std or interval (95 %).")] = "stderr",
    select: Annotated[
        str,
        typer.Option(
            help="Choose hyperparameters by source validation: none, shared (one choice for all targets) or target."
        ),
    ] = "none",
    baseline: Annotated[str | None, typer.Option(help="Row to compute paired differences to, such as adam.")] = None,
    compare: Annotated[str | None, typer.Option(help="paper: print the published numbers below ours.")] = None,
    accuracy: Annotated[
        str,
        typer.Option(
            help="Accuracy of a run: selected (weights), balanced (their mean over classes) or second-half (mean of "
            "the evaluations in the second half of training)."
        ),
    ] = "selected",
    experiment: Annotated[Path | None, typer.Option(help="Show only the runs of this TOML experiment.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change an entry of the experiment.", metavar="<entry=value>")
    ] = None,
    small: Annotated[bool, typer.Option("--small", help="Use the experiment's small version.")] = False,
) -> None:
    """Print accuracies on unseen domains, with spread and ranks."""
    only = None
    if experiment is not None:
        from mecam.benchmark.experiment import plan_runs

        only = plan_runs(experiment, {}, set_ or [], small=small, absent=True)
    _print_table(
        out, only=only, form=format, spread=spread, select=select, baseline=baseline, compare=compare, accuracy=accuracy
    )


def _print_table(out: Path, **options: Any) -> None:
    from mecam.benchmark.render import table

    text, problems = table(out, **options)
    for problem in problems:
        warn(problem)
    print(text)


@command("mecam report results --out report.html", "mecam report model --out model.html")
def report(
    out: Annotated[Path, typer.Argument(help="The --out of mecam bench or mecam train, or the folder of a run.")],
    file: Annotated[Path, typer.Option("--out", help="HTML file to write.")] = Path("report.html"),
    data: RunData = None,
) -> None:
    """Write a self-contained web page.

    A benchmark has a leaderboard, curves, mistakes, and the recipe behind every number. A single run, also a stopped
    one, has a page of its own.
    """
    from mecam.report import write

    print(write(out, file, data=data, progress=lambda event: warn(event.text)))


@command("mecam figures results --out figures", "mecam figures records.json")
def figures(
    results: ResultsArgument,
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("figures"),
) -> None:
    """Draw the paper's figures from finished runs as PNG and SVG.

    Figure 4 needs `mecam landscape` or `mecam bench --measure landscape` first. For each figure that is left out, the
    command it needs is printed.
    """
    from mecam.figures import write

    for figure in write(results, out, progress=lambda event: warn(event.text)):
        print(figure.line())
