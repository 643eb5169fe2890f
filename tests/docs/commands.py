"""Every command line that users are shown: in --help, on the pages, in examples/ and in recipes/."""

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer

from mecam.cli import app
from tests.docs.pages import PAGES, ROOT, blocks, name

PROGRAMS = ("mecam", "make", "pip", "python", "torchrun", "pre-commit")
COMMAND = typer.main.get_command(app)


def parse(words: list[str]) -> None:
    """Read a command line without running it; a word that means nothing is an error."""
    command: Any = COMMAND
    context = None
    while hasattr(command, "get_command"):
        context = command.make_context(command.name, list(words), parent=context)
        chosen = command.get_command(context, words[0])
        assert chosen is not None, f"there is no command {words[0]}"
        command, words = chosen, words[1:]
    command.make_context(command.name, words, parent=context)


def shown() -> dict[str, str]:
    """Every line, without its comment, and the first place that shows it."""
    found: dict[str, str] = {}
    for place, line in (*_in_help(), *_in_blocks(), *_in_text(), *_in_examples()):
        plain = " ".join(re.split(r"\s#|\s{3,}", line.strip())[0].split())
        found.setdefault(plain.removesuffix(" ..."), place)
    return found


def _in_help() -> Iterator[tuple[str, str]]:
    group: Any = COMMAND
    for line in group.help.splitlines():
        if line.startswith("  mecam ") and "COMMAND" not in line:
            yield "mecam --help", line
    for words, command in (*group.commands.items(), *group.commands["data"].commands.items()):
        for line in (command.epilog or "").splitlines()[2:]:
            yield f"mecam {words} --help", line.strip()
    for command in ("train", "bench"):
        for option in group.commands[command].params:
            for settings in re.findall(r"--set \w.*", option.help or ""):
                yield f"mecam {command} --help, text", f"mecam {command} {settings}"


def _in_blocks() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for block in blocks(page):
            lines = block.code.replace("\\\n", " ").splitlines() if block.language in ("sh", "") else []
            for line in lines:
                known = line.split(" ")[0] in PROGRAMS
                assert known or block.language == "" or not line.strip(), f"{name(page)}: what is {line!r}?"
                yield from [(name(page), line)] if known else []


def _in_text() -> Iterator[tuple[str, str]]:
    for page in (*PAGES, *sorted((ROOT / "recipes").glob("*.toml"))):
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for quoted in re.findall(r"`([^`]+)`", text):
            if re.match(rf"({'|'.join(PROGRAMS)}) [a-z'./-]", quoted):
                yield f"{name(page)}, text", quoted.replace("\n", " ")


def _in_examples() -> Iterator[tuple[str, str]]:
    for file in sorted((ROOT / "examples").glob("*.py")):
        text = inspect.cleandoc(ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "")
        yield from ((name(file), line) for line in re.findall(r"^ +(mecam .*)", text, flags=re.MULTILINE))
