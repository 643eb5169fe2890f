"""Options that several commands have; those of a recipe come from its entries."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from mecam.near import plain
from mecam.recipe import ELSEWHERE, Recipe, entry_kind, option

BENCH = {  # where the help of mecam bench differs
    "target": "Domains to leave out. Default: each in turn.",
    "method": "Training objectives: mecam list methods, or all.",
    "seed": "Random seeds. Default: 0,1,2.",
}


def _help(name: str) -> str:
    return str(Recipe.__dataclass_fields__[name].metadata["help"])


Out = Annotated[Path, typer.Option(help="Output folder.")]
RunData = Annotated[
    Path | None,
    typer.Option("--data", help="The data of the run. Default: the path in the run, if you have used it here before."),
]
RunWeights = Annotated[
    Path | None, typer.Option("--weights", help="The file that the run started from, if you have not used it here.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
RunArgument = Annotated[Path, typer.Argument(help="Folder of a finished run, or the --out of mecam train.")]
ModelArgument = Annotated[
    Path, typer.Argument(help="The --out of mecam fit, train or soup, or the folder of a run, finished or not.")
]
EnsembleWith = Annotated[
    list[Path] | None,
    typer.Option(
        "--with", help="Another model: average the outputs of both (an ensemble). Can be repeated.", metavar="<path>"
    ),
]
RunArguments = Annotated[list[Path], typer.Argument(help="Finished runs, or folders of runs (--out of mecam bench).")]
ResultsArgument = Annotated[Path, typer.Argument(help="The --out or --records of mecam bench.")]
Split = Annotated[str, typer.Option(help="Images to use: train, validation (held-out source images) or target.")]
Images = Annotated[int | None, typer.Option(help="Use a fixed subset of at most N images.")]
FolderArgument = Annotated[Path, typer.Argument(help="A folder root/<domain>/<class>/<image>, or a CSV file.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Decoding threads.")]
WantedPrecision = Annotated[
    float | None,
    typer.Option(
        help="Add unknown: True where the probability is below a threshold. Of the other predictions, this share was "
        "right in domains left out of training. Example: 0.95."
    ),
]
TextOrJson = Annotated[Literal["terminal", "json"], typer.Option(help="Output format.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Do not print progress.")]


class RecipeCommand(TyperCommand):
    """A command with the options of a recipe. For an unknown option, it names the entry or setting that is meant."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # typer's, for an option that it does not know
            unknown = getattr(error, "option_name", "").lstrip("-").replace("-", "_")
            if unknown and (meant := _meant(unknown)):
                error.possibilities = meant  # type: ignore[attr-defined]
            raise


def _meant(name: str) -> list[str]:
    """Return the option of an entry that has this name elsewhere, or those of hyperparameters of this name."""
    if plain(name) in ELSEWHERE:
        return [option(ELSEWHERE[plain(name)])]
    from mecam.benchmark.settings import PARTS, registry  # which import torch

    owners = {table: registry(part) for table, part in PARTS.items()}
    return [
        f"--set {table}.{name}=..."
        for table, among in owners.items()
        if any(name in among.defaults(item) for item in among)
    ]


def recipe_options(*names: str, lists: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add an option for each of these entries of a recipe to a command; by default for all, after its argument.

    The command gets them as `**entries`. With `lists`, an option takes several values, with commas between them; a
    comma in a value is written ``\\,``.
    """

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        argument, *others, _entries = inspect.signature(function, eval_str=True).parameters.values()
        among = names or [name for name in Recipe.__dataclass_fields__ if entry_kind(name).type is not dict]
        options = [_option(name, lists) for name in among]
        own = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in others]
        parameters = [argument, *own, *options] if names else [argument, *options, *own]
        function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return function

    return add


def given(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that were given on the command line."""
    return {name: value for name, value in entries.items() if value is not None}


def _option(name: str, lists: bool) -> Parameter:
    kind, _, choices = entry_kind(name)
    help = _help(name)
    if choices:
        help = f"{help} One of {', '.join(choices)}."
    if kind is bool:
        option_ = typer.Option(f"{option(name)}/{option(f'no-{name}')}", help=help)
    elif lists:
        option_ = typer.Option(help=BENCH.get(name, help), metavar=f"<{kind.__name__},...>")
        name, kind = "seeds" if name == "seed" else name, str
    else:
        option_ = typer.Option(help=help)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option_])
