"""The page: one self-contained HTML file on the runs of a folder."""

from mecam.report.page import write

__all__ = ["write"]
