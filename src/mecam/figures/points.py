"""Data of the figures: means over seeds, names of rows, and why a figure cannot be drawn."""

from __future__ import annotations

import shlex
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mecam.benchmark import paper
from mecam.benchmark.tables import AVERAGE, SPREADS, Key, Row, trial_averages

FIRST = ("adam", "sam", "gam", "sagm", "fad", "crsam", "fsam", "mecam")  # the optimizers of the paper's figures
PREFERRED = "PACS"  # the data set of the paper's figures


class Missing(Exception):
    """A figure cannot be drawn; `command` produces what it lacks, with RESULTS for the folder.

    Args:
        experiment: the name of a file in recipes/, for the command that runs it.
    """

    def __init__(self, why: str, experiment: str = "", *, command: str = "") -> None:
        super().__init__(why)
        self.command = command or f"mecam bench recipes/{experiment}.toml --out RESULTS"

    def command_for(self, out: Path) -> str:
        """Return the command for the results in this folder or records file."""
        if out.is_file():
            return self.command.replace("--out RESULTS", f"--out results --records {shlex.quote(str(out))}")
        return self.command.replace("RESULTS", shlex.quote(str(out)))


@dataclass(frozen=True)
class Point:
    """A mean over seeds, percent."""

    x: float
    mean: float
    spread: float | None = None  # standard error; None: one seed, or not known


@dataclass(frozen=True)
class Line:
    """Points of one row; `published` are the paper's."""

    name: str
    optimizer: str
    points: tuple[Point, ...]
    published: tuple[Point, ...] = ()


def mean_point(x: float, values: Sequence[float]) -> Point:
    """Return the mean over seeds."""
    return Point(x, statistics.fmean(values), SPREADS["stderr"](values) if len(values) > 1 else None)


def over_targets(row: Row, targets: Collection[str], x: float = 0.0) -> Point | None:
    """Return the mean over targets per seed, then over the seeds that have all targets; None without such a seed."""
    averages = trial_averages(row.values, targets) if targets else []
    return mean_point(x, averages) if averages else None


def published_mean(key: Key, target: str = AVERAGE) -> float | None:
    """Return the published accuracy of this row, from the first table that has it."""
    return next((cell.mean for cell in paper.beside(key, target)), None)


def published_average(row: Row) -> float | None:
    """Return the published average for this row, if it is over as many targets."""
    targets = paper.TARGETS.get(row.key.data, {})
    return published_mean(row.key) if len(targets) == len(row.cells) - 1 else None


def row_name(key: Key) -> str:
    """Return the paper's name for a row without its settings, such as MeCAM; ours where it has none."""
    cells = paper.beside(key, AVERAGE, PREFERRED)
    return cells[0].algorithm if cells else replace(key, variant="").label


def named(keys: Sequence[Key]) -> list[str]:
    """Return names for the rows of a figure, with settings where names would repeat."""
    names = [row_name(key) for key in keys]
    return [
        f"{name} ({key.variant})" if names.count(name) > 1 and key.variant else name
        for name, key in zip(names, keys, strict=True)
    ]


def in_paper_order(optimizer: str) -> int:
    """Return the sort key that puts the paper's optimizers first, in its order."""
    return FIRST.index(optimizer) if optimizer in FIRST else len(FIRST)


def main_data(names: Iterable[str]) -> str:
    """Return the data set to draw: the paper's if present, else the most frequent."""
    counts = Counter(names)
    return max(counts, key=lambda data: (data == PREFERRED, counts[data]))


def target_words(targets: Iterable[str], total: int) -> str:
    """Describe the targets a mean is over."""
    names = sorted(targets)
    return f"average of {total} targets" if len(names) == total > 1 else f"target {', '.join(names)}"


def departures(rows: Iterable[Row], but: Collection[str] = ()) -> str:
    """Return how the settings of these rows, `but` some, differ from the published ones, for a figure's footnote."""
    words = dict.fromkeys(words for row in rows for words in paper.fewest(paper.departures_of_row(row)))
    shown = [each for each in words if each.split()[0] not in but]
    return f"ours: {'; '.join(shown)}" if shown else ""
