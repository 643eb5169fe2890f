"""The paper's figures on the page: SVG images, or a link to the section with its own chart."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mecam.benchmark.results import Result
from mecam.figures import FIGURES
from mecam.figures.points import Missing
from mecam.figures.write import images


@dataclass(frozen=True)
class FigureView:
    """A figure of the paper: an image, a section of the page, or why there is neither."""

    title: str
    about: str
    image: str | None = None  # base64 of an SVG file
    section: str | None = None
    absent: str | None = None
    command: str | None = None


def figures(out: Path, results: Sequence[Result], sections: Mapping[str, str], notes: list[str]) -> list[FigureView]:
    """Return every figure; `sections` names those the page draws itself. Without matplotlib, only these and a note."""
    shown = []
    for name, entry in FIGURES.items():
        if name in sections:
            shown.append(FigureView(entry.title, entry.about, section=sections[name]))
            continue
        try:
            svg = images(name, out, results, formats=("svg",))["svg"]
        except Missing as missing:
            shown.append(FigureView(entry.title, entry.about, absent=missing.why, command=missing.command_for(out)))
        except ImportError as error:
            note = f"the paper's figures are left out: {error}"
            notes += [] if note in notes else [note]
        else:
            shown.append(FigureView(entry.title, entry.about, image=base64.b64encode(svg).decode()))
    return shown
