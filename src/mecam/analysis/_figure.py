"""Figures as files, without a display and without state between them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(*, width: float = 7.0, height: float = 4.5) -> Figure:
    """An empty figure of this many inches."""
    try:
        from matplotlib.figure import Figure
    except Exception as error:  # a broken installation fails in other ways than by ImportError
        raise ImportError(f"plots need matplotlib (pip install 'mecam[analysis]'): {error}") from error
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: Path | str) -> Path:
    """Write the figure in the format that the file's ending names: .png, .svg, .pdf."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
