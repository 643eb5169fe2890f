"""Every figure of the paper, by name, and what `mecam figures` does: write those that the runs of a folder allow."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mecam.analysis import demonstration
from mecam.benchmark import results
from mecam.benchmark.results import Result
from mecam.figures import _style, accuracy, alpha_beta, iterations, landscapes, rho
from mecam.figures.points import Missing
from mecam.runs import RunError, write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")


@dataclass(frozen=True)
class Entry:
    """A figure of the paper."""

    title: str
    about: str
    draw: Callable[[Path, Sequence[Result]], Figure]  # raises Missing


FIGURES: Mapping[str, Entry] = {
    "figure1": Entry("Figure 1", "Average accuracy of all methods.", accuracy.figure),
    "figure2": Entry(
        "Figure 2", "A sharp and a flat minimum: SAM's sharpness and the curvature metric.", demonstration.figure
    ),
    "figure3": Entry("Figure 3", "Accuracy against training iterations, one panel per target.", iterations.figure),
    "figure4": Entry("Figure 4", "Loss landscapes on one scale.", landscapes.figure),
    "figureIa": Entry("Supplementary Figure I(a)", "Accuracy against rho.", rho.figure),
    "figureIb": Entry("Supplementary Figure I(b)", "Accuracy for alpha against beta.", alpha_beta.figure),
}


@dataclass(frozen=True)
class Written:
    """What came of a figure: its files, or why there are none and the command that produces what is missing."""

    name: str
    files: tuple[Path, ...] = ()
    why: str = ""
    command: str = ""

    def line(self) -> str:
        title = FIGURES[self.name].title
        if self.files:
            return f"{title}: {', '.join(map(str, self.files))}"
        return f"{title} is left out: {self.why}; run {self.command}"


def write(
    out: Path | str, folder: Path | str = "figures", *, tell: Callable[[str], None] | None = None
) -> list[Written]:
    """Write the paper's figures of the runs in `out` to `folder`, as PNG and SVG.

    Args:
        tell: gets a line on each run that cannot be read.
    """
    out, folder = Path(out), Path(folder)
    if not out.is_dir():
        raise RunError(f"there is no folder {out}; give the --out of mecam bench")
    found, problems = results.read(out)
    for problem in problems if tell is not None else ():
        tell(problem)  # type: ignore[misc]
    folder.mkdir(parents=True, exist_ok=True)
    return [_write(name, out, found, folder) for name in FIGURES]


def images(name: str, out: Path, found: Sequence[Result], formats: Sequence[str] = FORMATS) -> dict[str, bytes]:
    """A figure in these formats; `Missing` where the runs do not allow it."""
    with _style.settings():
        drawn = FIGURES[name].draw(out, found)
        return {kind: _bytes(drawn, kind) for kind in formats}


def _write(name: str, out: Path, found: Sequence[Result], folder: Path) -> Written:
    try:
        drawn = images(name, out, found)
    except Missing as missing:
        return Written(name, (), missing.why, missing.command_for(out))
    files = []
    for kind, content in drawn.items():
        files.append(folder / f"{name}.{kind}")
        write_atomic(files[-1], content)
    return Written(name, tuple(files))


def _bytes(drawn: Figure, kind: str) -> bytes:
    file = io.BytesIO()
    drawn.savefig(file, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else {"Software": None})
    return file.getvalue()
