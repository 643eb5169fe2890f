"""Progress of long tasks: one event type, shown as bars on a terminal and in notebooks, and as lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Literal

from mecam.columns import visible

Kind = Literal["progress", "started", "warning", "done", "failed", "stopped", "elsewhere"]
ENDED = ("done", "failed", "stopped")
BAR = 10  # characters
VERBS = {
    "started": "begins",
    "done": "is done",
    "failed": "FAILED",
    "stopped": "stopped",
    "elsewhere": "is claimed by another process",
}


@dataclass(frozen=True)
class Event:
    """The progress of a task, or an event in it."""

    task: str  # "packing", a run id, ...
    done: int = 0
    total: int | None = None
    unit: str = ""
    text: str = ""  # shown beside the count; the message of a failure or a warning
    kind: Kind = "progress"
    loss: float | None = None  # a training step's, where reading it does not wait for a GPU
    record: Mapping[str, Any] | None = None  # an evaluation's, as in records.jsonl
    worker: str = ""  # a benchmark's

    def line(self) -> str:
        """Return the event as one line of text."""
        if self.kind == "progress":
            count = "" if self.total is None else f" {self.done} of {self.total} {self.unit}".rstrip()
        else:
            count = f" {VERBS[self.kind]}" if self.kind in VERBS else ""
        return visible(f"{self.task}{count}: {self.text}" if self.text else f"{self.task}{count}")


Progress = Callable[[Event], None]


def silent(_: Event) -> None:
    """Show nothing."""


def named(progress: Progress, name: str) -> Progress:
    """Prefix the tasks of all events with a name."""
    return lambda event: progress(replace(event, task=f"{name}, {event.task}"))


class Pace:
    """Measure seconds per unit of a task, from its first event of progress: work before a resume does not count."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.first: dict[str, tuple[int, float]] = {}

    def __call__(self, event: Event) -> float | None:
        if event.kind != "progress":
            self.first.pop(event.task, None)
            return None
        now = self.clock()
        done, start = self.first.setdefault(event.task, (event.done, now))
        return (now - start) / (event.done - done) if event.done > done and now > start else None

    def left(self, event: Event) -> str:
        """Return the time left of the event's task, where it is known."""
        pace = self(event)
        return "" if pace is None or event.total is None else f"{clock(pace * (event.total - event.done))} left"

    def with_time_left(self, event: Event) -> Event:
        """Add the time left to the event's text, where it is known."""
        return replace(event, text=", ".join(filter(None, (event.text, self.left(event)))))


def clock(seconds: float) -> str:
    """Format seconds as 1:02:05 or 2:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def at_tenths() -> Callable[[Event], bool]:
    """Return a filter that passes what happens to a task, its first event, and the first of each tenth."""
    stages: dict[str, int] = {}

    def is_news(event: Event) -> bool:
        stage = 10 * event.done // event.total if event.total else 0
        before, stages[event.task] = stages.get(event.task), stage
        return event.kind != "progress" or before != stage

    return is_news


def notes_and_tenths() -> Callable[[Event], bool]:
    """Return a filter that passes notes, ends of runs, and the tenths of long tasks."""
    tenths = at_tenths()
    return lambda event: event.kind != "progress" or (event.unit != "" and tenths(event))


def no_lines(_: Event) -> bool:
    """Pass nothing: commands that print their results at once show progress on a terminal only."""
    return False


@contextmanager
def shown(
    *,
    quiet: bool = False,
    lines: Callable[[Event], bool] | None = None,
    above: Callable[[Event], bool] | None = None,
) -> Iterator[Progress]:
    """Yield a function that shows events on stderr: a bar per task on a terminal or in a notebook, lines elsewhere.

    Args:
        quiet: show nothing.
        lines: which events are worth a line off a terminal; by default one per tenth of a task.
        above: which events of progress are worth a line above the bars, beside its place in the bar; by default none.
    """
    if quiet:
        yield silent
    elif _has_bars():
        with _bars(above) as show:
            yield show
    else:
        pace, is_news = Pace(), lines or at_tenths()

        def show(event: Event) -> None:
            event = pace.with_time_left(event)
            if is_news(event):
                print(event.line(), file=sys.stderr, flush=True)

        yield show


@contextmanager
def showing(progress: Progress | bool, *, lines: Callable[[Event], bool] | None = None) -> Iterator[Progress]:
    """Yield the function that a caller gave; True shows events as `shown` does, False shows nothing."""
    if isinstance(progress, bool):
        with shown(quiet=not progress, lines=lines) as show:
            yield show
    else:
        yield progress


def _has_bars() -> bool:
    """Return whether stderr is a terminal, or the output of a notebook that can show widgets."""
    if "ipykernel" in sys.modules:
        return find_spec("ipywidgets") is not None
    return sys.stderr.isatty()


@contextmanager
def _bars(above: Callable[[Event], bool] | None = None) -> Iterator[Progress]:
    """Show a bar per task, each on one line of the terminal: what does not fit is cut, the text first."""
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TextColumn
    from rich.progress import Progress as Bars
    from rich.table import Column

    console = Console(stderr=True)

    def column(field: str, **width: int) -> TextColumn:
        cut = Column(no_wrap=True, overflow="ellipsis", **width)  # type: ignore[arg-type]
        return TextColumn(f"{{task.{field}}}", markup=False, table_column=cut)

    columns = column("description", max_width=console.width // 2), BarColumn(BAR), column("fields[count]")
    pace = Pace()
    tasks: dict[str, TaskID] = {}
    with Bars(*columns, column("fields[text]", ratio=1), console=console, expand=True) as bars:

        def update(event: Event) -> None:
            if event.task not in tasks:
                tasks[event.task] = bars.add_task(visible(event.task), total=None, count="", text="")
            total = "?" if event.total is None else event.total
            done = f"{event.done}/{total} {event.unit}".rstrip() if event.done or event.total else event.unit
            text = ", ".join(filter(None, (pace.left(event), visible(event.text))))
            bars.update(tasks[event.task], completed=event.done, total=event.total, count=done, text=text)

        def show(event: Event) -> None:
            ended = event.kind in (*ENDED, "elsewhere")
            if event.kind in ("warning", "failed") or (event.kind == "done" and event.text) or (above and above(event)):
                bars.console.print(event.line(), markup=False, highlight=False, soft_wrap=True)
            if ended and event.task in tasks:
                bars.remove_task(tasks.pop(event.task))
            elif not ended and event.kind != "warning":
                update(event)

        yield show
