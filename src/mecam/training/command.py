"""`mecam train`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mecam import ranks
from mecam import recipe as recipes
from mecam.data.domains import DomainSet, source_domains
from mecam.data.folder import Scan
from mecam.data.open import SHAPES, open_data
from mecam.data.pack import OnError
from mecam.recipe import Recipe, RecipeError
from mecam.runs import RunFolder
from mecam.training import build
from mecam.training.interrupt import Interrupted
from mecam.training.loop import train
from mecam.training.watch import packing, watching


def recipe(file: Path | None, given: Mapping[str, Any], assignments: Sequence[str] = ()) -> Recipe:
    """The run that the options describe."""
    values = {} if file is None else recipes.read(file)
    values |= {name: value for name, value in given.items() if value is not None}
    for assignment in assignments:
        recipes.assign(values, assignment)
    found = recipes.make(values)
    build.check_parts(found)  # before a large folder is packed
    return found


def run(
    recipe: Recipe,
    out: Path,
    *,
    device: str = "auto",
    tensorboard: bool = False,
    skip_unreadable: bool = False,
    quiet: bool = False,
) -> int:
    """Train or resume a run, and print its result; return the exit code."""
    refuse_other_runs(recipe, out)
    folder = RunFolder(out / recipe.run_id)
    speaks = ranks.rank() == 0  # of the processes under torchrun
    if folder.is_done():
        if speaks:
            print(f"{folder.path} is already finished")
        return 0
    folders: list[Scan] = []
    with packing(quiet=quiet or not speaks) as progress:
        on_error: OnError = "skip" if skip_unreadable else "refuse"
        data = open_data(recipe.data, on_error=on_error, progress=progress, scanned=folders.append)
    if speaks and not quiet and recipe.data != SHAPES:
        print(f"{recipe.data}: {counted(data)}{''.join(map(_passed_over, folders))}", file=sys.stderr)
    if speaks:
        name_left_out(data)
    sources = len(source_domains(data, recipe.target))
    events = folder.path / "tensorboard" if tensorboard and speaks else None
    try:
        with watching(recipe, sources, tensorboard=events, quiet=quiet or not speaks) as watch:
            train(recipe, out, device=device, watch=watch, data=data, warn=say)
    except Interrupted as stop:
        if speaks:
            print(f"mecam: {stop}. The same command resumes it.", file=sys.stderr)
        return 128 + stop.signal_number
    if speaks:
        _tell(recipe, folder)
    return 0


def say(warning: Warning) -> None:
    """Print a warning as the command does; above a progress bar, which takes over stderr."""
    print(f"mecam: {warning}", file=sys.stderr, flush=True)


def refuse_other_runs(recipe: Recipe, out: Path) -> None:
    """`mecam train` keeps one run in a folder; a folder with another one is refused."""
    others = [folder.parent.name for folder in out.glob("*/run.json") if folder.parent.name != recipe.run_id]
    if others:
        raise RecipeError(
            f"{out} already holds another run, {others[0]}; give another --out, or run that run's command again to "
            "resume it"
        )


def counted(data: DomainSet) -> str:
    """The numbers of domains, classes and images."""
    images = sum(len(data.labels(domain)) for domain in range(len(data.domains)))
    return f"{len(data.domains)} domains, {len(data.classes)} classes, {images:,} images"


def _passed_over(found: Scan) -> str:
    """The first thing in the folder that is not used, and where to see the rest."""
    notes = [*found.notes, *(f"{folder!r}: no images" for folder in found.empty)]
    more = f", and {len(notes) - 1} more: mecam data check {found.root}" if len(notes) > 1 else ""
    return f"; note: {notes[0]}{more}" if notes else ""


def name_left_out(data: DomainSet) -> None:
    """Report the images that could not be read."""
    for skipped in getattr(data, "skipped", ()):  # a store's; the embedded set has none
        print(f"skipped: {' '.join(skipped.reason.split())}", file=sys.stderr)


def _tell(recipe: Recipe, folder: RunFolder) -> None:
    accuracy = folder.read_result()["target_accuracy"]
    if accuracy is not None:
        print(f"accuracy on {recipe.target}, which was not trained on: {100 * accuracy:.1f} %")
    print(folder.path)
