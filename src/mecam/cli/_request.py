"""What `mecam train` was asked for, and what it settles with this machine and the user before it starts."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from mecam.data.domains import DomainSet
    from mecam.recipe import Recipe
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
        from mecam.recipe import compose

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
        from mecam.recipe import read
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
        from mecam.recipe import READING
        from mecam.report.commands import options

        values = {name: getattr(recipe, name) for name in ("backbone", "weights", *READING)}
        others = options({name: value for name, value in values.items() if value not in (False, "lite0")})
        return shlex.join(["mecam", "fit", recipe.data, "--minutes", "15", *others])


def _at_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
