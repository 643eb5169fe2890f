"""`mecam train`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mecam.cli._app import command, warn
from mecam.cli.options import Device, Out, Quiet, RecipeCommand, recipe_options
from mecam.columns import visible
from mecam.progress import shown
from mecam.recipe import READING, Recipe, RecipeError, compose, names_in, read
from mecam.splits import balanced_accuracy, is_majority, summarize

if TYPE_CHECKING:
    from mecam.data.domains import DomainSet
    from mecam.runs import RunFolder
    from mecam.training.machine import Machine
    from mecam.training.sizing import Length, Sized

LENGTH = {"steps", "patience", "profile"}  # entries that determine the length of a run


@dataclass(frozen=True)
class Request:
    """The options of the command that make its recipe."""

    file: Path | None
    entries: Mapping[str, Any]
    assignments: tuple[str, ...]
    out: Path
    minutes: float | None

    def recipe(self, **entries: Any) -> Recipe:
        """Return the recipe, with these entries in place of those asked for."""
        return compose(self.file, {**self.entries, **entries}, self.assignments)

    def settled(self, recipe: Recipe) -> Recipe | None:
        """Return the recipe of this command's run in its folder, as decided before; None before the first run."""
        from mecam.runs import RunFolder

        known = self._length(recipe).recall(self.out)
        if known is None and self.minutes is None and RunFolder(self.out / recipe.run_id).exists():
            return recipe
        return known

    def describe(self, recipe: Recipe, machine: Machine, data: DomainSet, *, settled: bool) -> None:
        """Print what this command would train, and how long it takes."""
        from mecam.training.sizing import Length, size

        length = Length(recipe, None, frozenset({"batch"})) if settled else self._length(recipe)
        print("\n".join(self._lines(size(length, machine, data, measure=True))))

    def settle(self, recipe: Recipe, machine: Machine, data: DomainSet, *, quiet: bool) -> Recipe | None:
        """Decide what this machine decides; print what was chosen and, where it is long, what is cheaper.

        At a terminal, a long run on a CPU whose length was not asked for starts after a question. None: do not start.
        """
        from mecam import ranks
        from mecam.training.sizing import size

        length = self._length(recipe)
        sized = size(length, machine, data)
        first = ranks.rank() == 0
        if first and not quiet and (sized.cost is not None or sized.reason):
            print("\n".join(self._lines(sized)), file=sys.stderr, flush=True)
        unasked = self.minutes is None and not length.given & LENGTH and machine.device.type == "cpu"
        ask = unasked and sized.is_long and _at_terminal()
        if ask and not typer.confirm("Start this run? --minutes or --steps sets its length", err=True):
            return None
        if first and sized.recipe != recipe:
            length.keep(self.out, sized.recipe)
        return sized.recipe

    def _lines(self, sized: Sized) -> list[str]:
        if not sized.is_long or self.minutes is not None:
            return [sized.line()]
        cheaper = sized.cheaper(self.recipe)
        commands = [self._command(changed) if changed else self._fit(sized.recipe) for changed, _ in cheaper]
        notes = (note for _, note in cheaper)
        return [f"{sized.line()}. Cheaper:", *(f"  {c}\n      {note}" for c, note in zip(commands, notes, strict=True))]

    def _length(self, recipe: Recipe) -> Length:
        """Return what was asked for about the length. The steps of a file give way to --minutes."""
        from mecam.training.sizing import Length

        assigned = (assignment.partition("=")[0].partition(".")[0].strip() for assignment in self.assignments)
        typed = {*assigned, *(name for name, value in self.entries.items() if value is not None)}
        read_ = set(() if self.file is None else read(self.file))
        return Length(recipe, self.minutes, frozenset(typed | read_ - ({"steps"} if self.minutes else set())))

    def _command(self, changed: Mapping[str, Any]) -> str:
        """Return this command with other options."""
        from mecam.report.commands import options

        words = ["mecam", "train", *([] if self.file is None else [str(self.file)])]
        words += options({**self.entries, **changed})
        for assignment in self.assignments:
            words += ["--set", assignment]
        return shlex.join([*words, "--out", str(self.out)])

    @staticmethod
    def _fit(recipe: Recipe) -> str:
        from mecam.report.commands import options

        values = {name: getattr(recipe, name) for name in ("backbone", "weights", *READING)}
        others = options({name: value for name, value in values.items() if value not in (False, "lite0")})
        return shlex.join(["mecam", "fit", recipe.data, "--minutes", "15", *others])


def _at_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


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
    accuracy, model = summarize(folder.read_result()["splits"], recipe.target).validation, shlex.quote(str(out))
    held_out = "" if accuracy is None else f"accuracy on held-out images of the sources: {100 * accuracy:.1f} %; "
    return f"{held_out}next: mecam predict {model} PHOTO.jpg, mecam report {model}"


def _check_alone(out: Path, recipe: Recipe | None) -> None:
    """Refuse a folder that holds another run than this one: `mecam train` keeps one run per folder."""
    own = None if recipe is None else recipe.run_id
    others = [folder.parent.name for folder in out.glob("*/run.json") if folder.parent.name != own]
    if others:
        raise RecipeError(
            f"{out} already holds another run, {others[0]}; give another --out, or run that run's command again to "
            "resume it"
        )
