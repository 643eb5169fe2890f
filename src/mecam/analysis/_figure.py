"""Figures as files, without a display and without state between them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDINGS = (".png", ".svg", ".pdf", ".eps", ".jpg")


def load() -> ModuleType:
    """matplotlib with its figures, or an error that says how to install it."""
    try:
        import matplotlib.figure
    except Exception as error:  # a broken installation fails in other ways than by ImportError
        raise ImportError(f"plots need matplotlib (pip install 'mecam[analysis]'): {error}") from error
    return matplotlib


def new_figure(*, width: float = 7.0, height: float = 4.5) -> Figure:
    """An empty figure of this many inches."""
    figure: Figure = load().figure.Figure(figsize=(width, height), layout="constrained")
    return figure


def check_ending(path: Path | str) -> Path:
    """The path of a figure to write; an ending that names no format is refused, before any work is done for it."""
    path = Path(path)
    if path.suffix.lower() not in ENDINGS:
        raise ValueError(f"a figure cannot be written to {path}; its name must end in {', '.join(ENDINGS)}")
    return path


def save(figure: Figure, path: Path | str) -> Path:
    """Write the figure in the format that the file's ending names."""
    path = check_ending(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
