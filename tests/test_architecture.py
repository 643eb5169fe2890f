"""What the import contract does not see."""

from pathlib import Path

SOURCES = sorted((Path(__file__).parents[1] / "src" / "mecam").rglob("*.py"))
LONG = 400


def test_no_file_is_long() -> None:
    lengths = {source.name: source.read_text(encoding="utf-8").count("\n") for source in SOURCES}
    assert {name: length for name, length in lengths.items() if length > LONG} == {}
