"""`mecam soup`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mecam.cli._app import command
from mecam.cli.options import Device, RunArguments, RunData, RunWeights


@command(
    "mecam soup runs --target sketch --out soup",
    "mecam soup runs --out soup",
    "mecam soup RUN --interpolate --out soup",
)
def soup(
    runs: RunArguments,
    out: Annotated[Path, typer.Option(help="Folder for the model.")] = Path("soup"),
    target: Annotated[str | None, typer.Option(help="Take the runs that leave out this domain.")] = None,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Add a run only if source validation does not drop; runs of one seed.")
    ] = False,
    interpolate: Annotated[
        bool,
        typer.Option(
            "--interpolate", help="Move towards the initial weights where source validation is best (WiSE-FT)."
        ),
    ] = False,
    data: RunData = None,
    weights: RunWeights = None,
    device: Device = "auto",
) -> None:
    """Average the weights of several finished runs into one model.

    The runs must share network, data and initial weights, and are not changed. The model is a run: mecam predict,
    evaluate, export and report take it.
    """
    from mecam.benchmark.soup import soup

    made = soup(
        runs, out, target=target, greedy=greedy, interpolate=interpolate, data=data, weights=weights, device=device
    )
    left_out = f", {len(made.left_out)} left out" if made.left_out else ""
    print(f"averaged {len(made.members)} run{'s' if len(made.members) > 1 else ''}{left_out}")
    if interpolate:
        print(f"share of the initial weights: {100 * made.initial_share:.0f} %")
    if made.accuracy is not None:
        accuracies = [100 * accuracy for accuracy in made.members.values() if accuracy is not None]
        print(
            f"accuracy on the domain left out: {100 * made.accuracy:.1f} %; of its runs: {min(accuracies):.1f} to "
            f"{max(accuracies):.1f} %"
        )
    print(f"model: {out}; next: mecam predict {out} PHOTO.jpg")
