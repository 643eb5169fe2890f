"""`mecam train`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mecam.cli._app import command, warn
from mecam.cli._request import Request
from mecam.cli.options import Device, Out, Quiet, RecipeCommand, recipe_options
from mecam.columns import visible

if TYPE_CHECKING:
    from mecam.data.domains import DomainSet
    from mecam.recipe import Recipe
    from mecam.runs import RunFolder


@command(
    "mecam train --optimizer mecam --target sketch",
    "mecam train --data root --optimizer mecam --averaging swad --out averaged",
    "mecam train --data root --optimizer mecam --minutes 60 --out tuned",
    "mecam train --data root --optimizer mecam --dry-run",
    "mecam train --data PACS --target photo --optimizer mecam --set optimizer_settings.rho=0.05 --out photo",
    "torchrun --nproc-per-node 4 -m mecam.cli train --data root --optimizer mecam --out model",
    resumes=True,
    cls=RecipeCommand,
)
@recipe_options()
def train(
    recipe: Annotated[Path | None, typer.Argument(help="A TOML recipe; the options below override it.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Set any recipe entry (mecam list recipe): --set lr=3e-5 --set optimizer_settings.eps=1e-6",
            metavar="<entry=value>",
        ),
    ] = None,
    out: Out = Path("runs"),
    minutes: Annotated[
        float | None, typer.Option(help="Time budget: sets the steps to those that fit, by a measurement.")
    ] = None,
    device: Device = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the run and its estimated time.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard events.")] = False,
    quiet: Quiet = False,
    **entries: Any,
) -> int:
    """Train one model. The same command resumes an unfinished run."""
    request = Request(recipe, entries, tuple(set_ or ()), out, minutes)
    return _train(request, device=device, dry_run=dry_run, tensorboard=tensorboard, quiet=quiet)


def _train(request: Request, *, device: str, dry_run: bool, tensorboard: bool, quiet: bool) -> int:
    """Train or resume a run, and print its result; return the exit code."""
    from mecam import ranks
    from mecam.data.domains import source_domains
    from mecam.data.notes import counts, warn_about
    from mecam.data.open import SHAPES, open_data
    from mecam.progress import shown
    from mecam.recipe import names_in
    from mecam.runs import RunFolder
    from mecam.training import Interrupted, train
    from mecam.training.build import check_parts, check_start, starts_at_random
    from mecam.training.machine import find_machine
    from mecam.training.watch import watching

    recipe, out = request.recipe(), request.out
    check_parts(recipe)  # before a large folder is packed
    settled = request.settled(recipe)
    recipe = settled or recipe
    _check_alone(out, settled)
    folder = RunFolder(out / recipe.run_id)
    first = ranks.rank() == 0  # only one of the processes under torchrun prints
    if settled is not None and folder.is_done():
        if first:
            print(f"{folder.path} is already finished")
        return 0
    if not folder.run_file.exists():
        check_start(recipe)
    with shown(quiet=quiet or not first) as progress:
        data = open_data(recipe.data, **recipe.reading, progress=progress)
    if first and not quiet and recipe.data != SHAPES:
        print(visible(f"{recipe.data}: {counts(data)}"), file=sys.stderr)
        if starts_at_random(recipe):
            print(f"{recipe.backbone}: random initial weights", file=sys.stderr)
    if first:
        warn_about(data, warn)
    machine = find_machine(device, recipe.precision, deterministic=recipe.deterministic)
    if dry_run:
        request.describe(recipe, machine, data, settled=settled is not None)
        return 0
    if settled is None:
        chosen = request.settle(recipe, machine, data, quiet=quiet)
        if chosen is None:
            return 1
        recipe, folder = chosen, RunFolder(out / chosen.run_id)
    sources = len(source_domains(data, recipe.target, names_in(recipe.sources)))
    events = folder.path / "tensorboard" if tensorboard and first else None
    try:
        with watching(recipe, sources, tensorboard=events, quiet=quiet or not first) as progress:
            train(recipe, out, device=device, progress=progress, data=data, warn=warn)
    except Interrupted as stop:
        if first:
            warn(f"{stop}. The same command resumes it.")
        return 128 + stop.signal_number
    if first:
        _print_accuracy(folder, recipe, data)
        print(folder.path)
        if not quiet:
            print(_last_line(folder, recipe, out), file=sys.stderr)
    return 0


def _print_accuracy(folder: RunFolder, recipe: Recipe, data: DomainSet) -> None:
    """Print the accuracy on the target, if there is one; warn if naming the most frequent class reaches the same."""
    from mecam.data.domains import most_frequent
    from mecam.splits import balanced_accuracy, is_majority

    result = folder.read_result()
    accuracy, balanced = result["target_accuracy"], balanced_accuracy(result["splits"], recipe.target)
    if recipe.target is None or accuracy is None or balanced is None:
        return
    shares = f"{100 * accuracy:.1f} %, balanced {100 * balanced:.1f} %"
    print(f"accuracy on {recipe.target}, which was not trained on: {shares}")
    name, share = most_frequent(data, recipe.target)
    if is_majority(accuracy, share, len(data.classes)):
        warn(
            f"the accuracy is about the share of the most frequent class, {name} ({100 * share:.1f} % of "
            f"{recipe.target}); see --balanced and --class-weights"
        )


def _last_line(folder: RunFolder, recipe: Recipe, out: Path) -> str:
    """Return the accuracy on held-out images of the sources, and commands to type next."""
    from mecam.splits import summarize

    accuracy, model = summarize(folder.read_result()["splits"], recipe.target).validation, shlex.quote(str(out))
    held_out = "" if accuracy is None else f"accuracy on held-out images of the sources: {100 * accuracy:.1f} %; "
    return f"{held_out}next: mecam predict {model} PHOTO.jpg, mecam report {model}"


def _check_alone(out: Path, recipe: Recipe | None) -> None:
    """Refuse a folder that holds another run than this one: `mecam train` keeps one run per folder."""
    from mecam.recipe import RecipeError

    own = None if recipe is None else recipe.run_id
    others = [folder.parent.name for folder in out.glob("*/run.json") if folder.parent.name != own]
    if others:
        raise RecipeError(
            f"{out} already holds another run, {others[0]}; give another --out, or run that run's command again to "
            "resume it"
        )
