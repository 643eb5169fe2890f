"""`mecam list` and `mecam doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from mecam.cli._app import command


@command("mecam list", "mecam list optimizers --verbose", "mecam list profiles", "mecam list recipe", name="list")
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="methods, optimizers, averagings, virtual, measures, backbones, data, profiles, recipe. Default: all."
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Include hyperparameters, sizes and sources.")] = False,
) -> None:
    """List methods, optimizers, backbones, data sets and more."""
    from mecam.listing import lines

    print("\n".join(lines(kind, verbose=verbose)))


@command("mecam doctor")
def doctor() -> None:
    """Report hardware, installed packages and known problems."""
    from mecam.doctor import health

    print("\n".join(health()))
