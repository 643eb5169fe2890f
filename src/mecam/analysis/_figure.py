"""Create and save matplotlib figures without a display or global state."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDINGS = (".png", ".svg", ".pdf", ".eps", ".jpg")


def load() -> ModuleType:
    """Import matplotlib; the error names the extra to install."""
    try:
        import matplotlib.figure
    except Exception as error:  # a broken installation fails in other ways than by ImportError
        raise ImportError(f"plots need matplotlib (pip install 'mecam[analysis]'): {error}") from error
    return matplotlib


def new_figure(*, width: float = 7.0, height: float = 4.5) -> Figure:
    """Return an empty figure of this size in inches."""
    figure: Figure = load().figure.Figure(figsize=(width, height), layout="constrained")
    return figure


def check_ending(path: Path | str) -> Path:
    """Return the path of a figure; refuse an ending that names no format."""
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
