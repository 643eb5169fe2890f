"""Command lines that are read and not run."""

from typing import Any

import typer

from mecam.cli import app


def parse(words: list[str]) -> None:
    """Read a command line without running it; a word that means nothing is an error."""
    command: Any = typer.main.get_command(app)
    context = None
    while hasattr(command, "get_command"):
        context = command.make_context(command.name, list(words), parent=context)
        chosen = command.get_command(context, words[0])
        assert chosen is not None, f"there is no command {words[0]}"
        command, words = chosen, words[1:]
    command.make_context(command.name, words, parent=context)
