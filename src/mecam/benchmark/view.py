"""Watching a benchmark: one live table on a terminal, a line an event elsewhere, and a log file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mecam.benchmark.jobs import ENDED, Event, Watch

if TYPE_CHECKING:
    from rich.table import Table

LOG = "bench.log"


@dataclass
class _Active:
    """A run in progress, and when this session began it."""

    event: Event
    began: float
    first: int  # the first step that was seen

    def seconds_left(self, now: float) -> float | None:
        taken = self.event.step - self.first
        return (now - self.began) / taken * (self.event.steps - self.event.step) if taken > 0 else None


class Board:
    """Where a benchmark stands."""

    def __init__(self, total: int, finished: int = 0) -> None:
        self.total, self.finished, self.failed = total, finished, 0
        self.active: dict[str, _Active] = {}
        self.elsewhere: set[str] = set()
        self._start, self._before = time.monotonic(), finished

    def note(self, event: Event) -> bool:
        """Take note of it; whether it is worth a line."""
        if event.kind == "warning":  # the run goes on
            return True
        now = time.monotonic()
        known_elsewhere = event.run_id in self.elsewhere
        self.elsewhere.discard(event.run_id)
        if event.kind == "elsewhere":  # which is told at every look
            self.active.pop(event.run_id, None)
            self.elsewhere.add(event.run_id)
            return not known_elsewhere
        if event.kind == "started":
            self.active[event.run_id] = _Active(event, now, 0)
        elif event.kind == "progress":
            known = self.active.get(event.run_id)
            if known is None or known.event.kind == "started":
                self.active[event.run_id] = _Active(event, now, event.step)
            else:
                known.event = event
        else:
            self.active.pop(event.run_id, None)
            self.finished += event.kind == "done"
            self.failed += event.kind == "failed"
        return event.kind != "progress"

    def seconds_left(self) -> float | None:
        """Until all is done, at the pace of the runs that this session finished."""
        done = self.finished - self._before
        if not done:
            return None
        return (time.monotonic() - self._start) / done * (self.total - self.finished - self.failed)

    def headline(self) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        elsewhere = f", {len(self.elsewhere)} in another process" if self.elsewhere else ""
        return f"{self.finished} of {self.total} runs done{failed}{elsewhere}, {clock(self.seconds_left())} left"


@contextmanager
def watching(total: int, finished: int, out: Path) -> Iterator[Watch]:
    """A watcher for `bench`."""
    board = Board(total, finished)
    out.mkdir(parents=True, exist_ok=True)
    with open(out / LOG, "a", encoding="utf-8") as log, _shown(board) as show:

        def watch(event: Event) -> None:
            news = board.note(event)
            if news:
                log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {_line(event)}\n")
                log.flush()
            show(event, news)

        yield watch


@contextmanager
def _shown(board: Board) -> Iterator[Callable[[Event, bool], None]]:
    if not sys.stderr.isatty():
        yield lambda event, news: _print(f"{_line(event)}; {board.headline()}") if news else None
        return
    from rich.console import Console
    from rich.live import Live

    with Live(_table(board), console=Console(stderr=True), refresh_per_second=4) as live:

        def show(event: Event, _news: bool) -> None:
            if event.kind == "warning":  # which the table has no place for: above it
                live.console.print(_line(event), markup=False, highlight=False)
            live.update(_table(board))

        yield show


def _table(board: Board) -> Table:
    from rich import table as tables

    table = tables.Table(title=board.headline(), title_justify="left", box=None, pad_edge=False)
    for name in ("run", "step", "validation", "unseen", "left"):
        table.add_column(name, justify="left" if name == "run" else "right")
    now = time.monotonic()
    for run in board.active.values():
        event = run.event
        left = clock(run.seconds_left(now))
        table.add_row(
            event.run_id, f"{event.step}/{event.steps}", _percent(event.accuracy), _percent(event.target), left
        )
    return table


def _line(event: Event) -> str:
    """An event in a line."""
    if event.kind == "warning":
        return f"{event.run_id}: {event.message}"
    words = {"started": "begins", "done": "is done", "failed": "FAILED", "stopped": "stopped"}
    accuracy = "" if event.accuracy is None else f": source validation {event.accuracy:.1f} %"
    unseen = "" if event.target is None else f", unseen {event.target:.1f} %"
    message = f": {event.message}" if event.message and event.kind in ENDED else ""
    return f"{event.run_id} {words.get(event.kind, 'is claimed by another process')}{accuracy}{unseen}{message}"


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} %"


def clock(seconds: float | None) -> str:
    """Hours, minutes and seconds."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
