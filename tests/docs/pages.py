"""The pages of the documentation, and the code in them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


@dataclass(frozen=True)
class Block:
    """A block of code: its language, "" for one that is only indented."""

    language: str
    code: str


def blocks(page: Path) -> list[Block]:
    """Every fenced and every indented block of a page, in order."""
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        fence = re.fullmatch(r"```(\w*)", lines[at])
        if fence:
            end = lines.index("```", at + 1)
            found.append(Block(fence[1], "\n".join(lines[at + 1 : end]) + "\n"))
            at = end + 1
        elif lines[at].startswith("    ") and (at == 0 or not lines[at - 1].strip()):
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            found.append(Block("", "\n".join(line[4:] for line in lines[at:end]).rstrip() + "\n"))
            at = end
        else:
            at += 1
    return found


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()
