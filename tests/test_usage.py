"""What the command line says before anything is asked of it, and how it looks on a terminal and off it."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mecam.cli import app, data_app
from tests.serving.runs import write_images

COMMANDS = [command.name or command.callback.__name__ for command in app.registered_commands]  # type: ignore[union-attr]
COMMANDS += [f"data {command.name}" for command in data_app.registered_commands]
COLOUR = re.compile(r"\x1b\[(3|9)\d")


def test_without_words_it_shows_first_steps() -> None:
    said = CliRunner().invoke(app, []).output
    lines = [line.strip() for line in said.splitlines()]
    assert "First steps:" in lines
    steps = [re.split(r"\s{2,}", line)[0] for line in lines if line.startswith("mecam ") and "COMMAND" not in line]
    assert len(steps) == 5  # which tests/docs/test_commands.py runs


def test_the_list_of_commands_cuts_no_sentence() -> None:
    said = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).output
    lines = said.partition("Commands:\n")[2].splitlines()
    assert len(lines) > 15
    assert [line for line in lines if not line.endswith(".") or line.endswith("...")] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_has_examples_of_it(command: str) -> None:
    said = CliRunner().invoke(app, [*command.split(), "--help"]).output
    examples = [line.strip() for line in said.partition("Examples:\n")[2].splitlines()]
    assert examples
    assert all(f" {command}" in example for example in examples)


def test_a_shell_completes_commands_and_options() -> None:
    def complete(words: str) -> list[str]:
        asked = {"_MECAM_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        code = "from mecam.cli import app; app(prog_name='mecam')"
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True, check=False
        )
        return done.stdout.split()

    assert complete("mecam tr") == ["train"]
    assert complete("mecam train --optim") == ["--optimizer"]


def pack_on_a_terminal(images: Path, out: Path, **variables: str) -> str:
    """What a person sees who packs a folder."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **variables}
    command = [sys.executable, "-m", "mecam.cli", "data", "pack", str(images), "--out", str(out)]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # Linux: the other end is closed
                break
            if not part:
                break
            seen += part
        assert process.wait(120) == 0, seen
    os.close(ours)
    return seen.decode()


def test_colour_on_a_terminal_unless_it_is_not_wanted_and_never_in_a_pipe(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images")
    assert COLOUR.search(pack_on_a_terminal(images, tmp_path / "one"))
    assert not COLOUR.search(pack_on_a_terminal(images, tmp_path / "two", NO_COLOR="1"))
    piped = CliRunner().invoke(app, ["data", "pack", str(images), "--out", str(tmp_path / "three")])
    assert "\x1b" not in piped.output
    assert piped.stdout.count("\n") == 1  # the result; progress is on stderr
    quiet = CliRunner().invoke(app, ["data", "pack", str(images), "--out", str(tmp_path / "four"), "--quiet"])
    assert not quiet.stderr
