"""Every message that the package can give has an entry in docs/troubleshooting.md."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.docs.pages import ROOT

GAP = "…"
SOURCES = sorted((ROOT / "src" / "mecam").rglob("*.py"))


@cache
def constants() -> dict[str, str]:
    """The texts that modules give a name, such as HOW_TO_STEP."""
    found = {}
    for source in SOURCES:
        for node in ast.parse(source.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                text = skeleton(node.value)
                if text is not None:
                    found[node.targets[0].id] = text
    return found


def skeleton(node: ast.expr, names: dict[str, str] | None = None) -> str | None:
    """The text of an expression with its varying parts as gaps; None for what is no text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_part(value, names) for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (skeleton(node.left, names) or GAP) + (skeleton(node.right, names) or GAP)
    if isinstance(node, ast.Name):
        return (names or {}).get(node.id)
    return None


def _part(value: ast.expr, names: dict[str, str] | None) -> str:
    if isinstance(value, ast.FormattedValue):
        return skeleton(value.value, names) or GAP if isinstance(value.value, ast.Name) else GAP
    return skeleton(value, names) or GAP


def messages() -> Iterator[tuple[str, str]]:
    """Where a message is made, and its skeleton: of errors, wherever they are built, and of warnings."""
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = ast.unparse(node.func)
            if called.endswith(("Error", "Warning", "warnings.warn", "Unreadable")) or called == "super().__init__":
                text = skeleton(node.args[0], constants())
                if text and text.strip(f"{GAP}: ()"):
                    yield f"{source.relative_to(ROOT)}:{node.lineno}", text


def patterns() -> list[str]:
    """The messages in the list entries of the page, `…` where they vary."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    entries = re.findall(r"^- .*(?:\n  .*)*", page, flags=re.MULTILINE)
    return [found for entry in entries for found in re.findall(r"`((?:[^`]|``)+)`", entry)]


def covers(pattern: str, message: str) -> bool:
    """Whether the pattern's words stand in the message in order; a gap of the pattern may be anything."""
    words = [re.escape(part) for part in pattern.replace("``", "`").split(GAP)]
    return re.search(".*".join(words), " ".join(message.split())) is not None


MESSAGES = list(messages())


def test_messages_are_found() -> None:
    assert len(MESSAGES) > 250
    assert any("step() needs a closure" in text for _, text in MESSAGES)
    assert any("no parameter of this optimizer has a gradient" in text for _, text in MESSAGES)


@pytest.mark.parametrize("pattern", patterns())
def test_an_entry_is_a_message_that_exists(pattern: str) -> None:
    assert len(pattern.replace(GAP, "").strip(" ;:.,()")) >= 6, "too little to search for"
    assert any(covers(pattern, text) for _, text in MESSAGES)


def test_every_message_has_an_entry() -> None:
    known = patterns()
    missing = [f"{where}: {text}" for where, text in MESSAGES if not any(covers(p, text) for p in known)]
    assert not missing, "\n".join(missing)
