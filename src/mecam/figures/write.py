"""The figures of the paper by name; write those that the runs of a folder allow."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mecam.analysis._figure import load
from mecam.benchmark import results
from mecam.benchmark.results import Result
from mecam.figures import _style, accuracy, iterations, landscapes, sensitivity, two_minima
from mecam.figures.points import Missing
from mecam.progress import Event, Progress, silent
from mecam.runs import RunError, write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper."""

    title: str
    about: str
    draw: Callable[[Path, Sequence[Result]], Figure]  # raises Missing


FIGURES: Mapping[str, PaperFigure] = {
    "figure1": PaperFigure(
        "Figure 1", "Average accuracy of all methods.", lambda _, results: accuracy.draw(accuracy.values(results))
    ),
    "figure2": PaperFigure(
        "Figure 2", "A sharp and a flat minimum: SAM's sharpness and the curvature metric.", two_minima.figure
    ),
    "figure3": PaperFigure(
        "Figure 3",
        "Accuracy against training iterations, one panel per target.",
        lambda _, results: iterations.draw(iterations.values(results)),
    ),
    "figure4": PaperFigure(
        "Figure 4", "Loss landscapes on one scale.", lambda *args: landscapes.draw(landscapes.values(*args))
    ),
    "figureIa": PaperFigure(
        "Supplementary Figure I(a)",
        "Accuracy against rho.",
        lambda _, results: sensitivity.draw_rho(sensitivity.rho_lines(results)),
    ),
    "figureIb": PaperFigure(
        "Supplementary Figure I(b)",
        "Accuracy for alpha against beta.",
        lambda _, results: sensitivity.draw_grid(sensitivity.alpha_beta_grid(results)),
    ),
}


@dataclass(frozen=True)
class Written:
    """The files of a figure, or why there are none and the command that produces what is missing."""

    name: str
    files: tuple[Path, ...] = ()
    why: str = ""
    command: str = ""

    def line(self) -> str:
        title = FIGURES[self.name].title
        if self.files:
            return f"{title}: {', '.join(map(str, self.files))}"
        return f"{title} is left out: {self.why}; run {self.command}"


def write(out: Path | str, folder: Path | str = "figures", *, progress: Progress = silent) -> list[Written]:
    """Write the paper's figures to `folder`, as PNG and SVG.

    Args:
        out: the runs: the `--out` or `--records` of mecam bench.
        progress: gets a warning for each run that cannot be read.
    """
    out, folder = Path(out), Path(folder)
    if not out.exists():
        raise RunError(f"there is no folder {out}, nor a records file; give the --out or --records of mecam bench")
    finished, problems = results.read(out)
    for problem in problems:
        progress(Event(str(out), text=problem, kind="warning"))
    folder.mkdir(parents=True, exist_ok=True)
    return [_write(name, out, finished, folder) for name in FIGURES]


def images(name: str, out: Path, finished: Sequence[Result], formats: Sequence[str] = FORMATS) -> dict[str, bytes]:
    """Return a figure in these formats; raise Missing where the runs do not allow it."""
    with load().rc_context(_style.SETTINGS):  # whatever matplotlib was set to before
        drawn = FIGURES[name].draw(out, finished)
        return {kind: _bytes(drawn, kind) for kind in formats}


def _write(name: str, out: Path, finished: Sequence[Result], folder: Path) -> Written:
    try:
        drawn = images(name, out, finished)
    except Missing as missing:
        return Written(name, (), str(missing), missing.command_for(out))
    files = {folder / f"{name}.{kind}": content for kind, content in drawn.items()}
    for file, content in files.items():
        write_atomic(file, content)
    return Written(name, tuple(files))


def _bytes(drawn: Figure, kind: str) -> bytes:
    file = io.BytesIO()
    drawn.savefig(file, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else {"Software": None})
    return file.getvalue()
