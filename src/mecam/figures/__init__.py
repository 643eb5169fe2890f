"""The paper's figures, drawn from the runs of a benchmark."""

from mecam.figures.write import FIGURES, write

__all__ = ["FIGURES", "write"]
