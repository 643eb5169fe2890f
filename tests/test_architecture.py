"""What the import contract does not see."""

import ast
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).parents[1] / "src" / "mecam").rglob("*.py"))
LONG = 400


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_long_file_says_at_its_top_why(source: Path) -> None:
    text = source.read_text(encoding="utf-8")
    if text.count("\n") > LONG:
        assert f"Above {LONG} lines because " in (ast.get_docstring(ast.parse(text)) or "")
