"""README and tutorials are easy to read: the Flesch-Kincaid grade of their prose."""

import re
from html.parser import HTMLParser
from pathlib import Path

import markdown
import pytest
import textstat
import yaml

from tests.docs.pages import ROOT, name

GRADE = 10
SKIPPED = {"pre", "table", "h1", "h2", "h3", "h4", "h5", "h6"}


class Prose(HTMLParser):
    """Paragraphs and items without code, tables and headings; a code span counts as a word of one syllable."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [""]
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        if tag in SKIPPED | {"code"}:
            self.open.append(tag)
        if tag == "code" and len(self.open) == 1:
            self.blocks[-1] += "code"
        if tag in ("p", "li", *SKIPPED):
            self.blocks.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            self.open.remove(tag)
        if tag in ("p", "li"):
            self.blocks.append("")

    def handle_data(self, data: str) -> None:
        if not self.open:
            self.blocks[-1] += data


def prose(text: str) -> str:
    """The sentences of a page, a block per line; decimal points do not end sentences."""
    parser = Prose()
    parser.feed(markdown.markdown(text, extensions=["tables", "fenced_code", "admonition", "attr_list"]))
    blocks = [" ".join(block.split()) for block in parser.blocks if block.strip()]
    sentences = [block if block.endswith((".", "!", "?")) else f"{block.rstrip(':;')}." for block in blocks]
    return re.sub(r"\.(?=\S)", "", "\n".join(sentences))


def tutorials() -> list[Path]:
    lines = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    sections = {title: pages for entry in yaml.safe_load(lines) for title, pages in entry.items()}
    return [ROOT / "docs" / page for entry in sections.get("Tutorials", ()) for page in entry.values()]


@pytest.mark.parametrize("page", [ROOT / "README.md", *tutorials()], ids=name)
def test_the_grade_of_a_page(page: Path) -> None:
    assert textstat.flesch_kincaid_grade(prose(page.read_text(encoding="utf-8"))) <= GRADE


def test_prose_is_without_code_tables_and_headings() -> None:
    page = "# Title\n\nA model has 97.4 % in `x.y`:\n\n    code\n\n| a |\n| --- |\n| b |\n\n- one\n- [two](there.md)\n"
    assert prose(page) == "A model has 974 % in code.\none.\ntwo."
