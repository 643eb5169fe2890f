"""Show a benchmark: a bar per run on a terminal, a line per event elsewhere, and a log file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mecam.progress import Event, Progress, shown

LOG = "bench.log"
TASK = "benchmark"


class Board:
    """Count what became of the runs of a benchmark."""

    def __init__(self, total: int, finished: int = 0) -> None:
        self.total, self.finished, self.failed = total, finished, 0
        self.elsewhere: set[str] = set()

    def note(self, event: Event) -> bool:
        """Count an event; return whether it is news. A run that another process claims is reported at every check."""
        known = event.task in self.elsewhere
        if event.kind == "elsewhere":
            self.elsewhere.add(event.task)
        elif event.kind != "warning":
            self.elsewhere.discard(event.task)
        self.finished += event.kind == "done"
        self.failed += event.kind == "failed"
        return event.kind != "progress" and not (event.kind == "elsewhere" and known)

    def event(self) -> Event:
        """Return the progress of the whole benchmark."""
        failed = [f"{self.failed} failed"] if self.failed else []
        elsewhere = [f"{len(self.elsewhere)} in another process"] if self.elsewhere else []
        return Event(TASK, self.finished, self.total, "runs done", ", ".join(failed + elsewhere))


@contextmanager
def shown_and_logged(total: int, finished: int, out: Path) -> Iterator[Progress]:
    """Yield the progress function for `bench`; events other than progress also go to the log in `out`."""
    board = Board(total, finished)
    out.mkdir(parents=True, exist_ok=True)
    with (
        open(out / LOG, "a", encoding="utf-8") as log,
        shown(lines=lambda e: e.kind != "progress" or e.task == TASK) as show,
    ):
        show(board.event())

        def progress(event: Event) -> None:
            before, is_news = board.event(), board.note(event)
            if is_news:
                log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {event.line()}\n")
                log.flush()
            if is_news or event.kind == "progress":
                show(event)
            if board.event() != before:
                show(board.event())

        yield progress
