"""Run one recipe of a benchmark: write its log, report its events."""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from mecam.benchmark.jobs import AfterRun
from mecam.columns import visible
from mecam.data.domains import DomainSet
from mecam.data.open import open_data
from mecam.progress import Event, Progress
from mecam.recipe import Recipe
from mecam.runs import ClaimedError, RunError, claim
from mecam.storage.files import open_plain, writing
from mecam.training import Interrupted, train
from mecam.training.watch import accuracies

LOG = "log.txt"
LOG_TAIL = 1 << 16  # bytes that are read to show its last lines
REPORT_EVERY = 0.5  # seconds between two events of progress


def work(
    recipe: Recipe,
    out: Path,
    device: str,
    progress: Progress,
    worker: str = "",
    *,
    data: DomainSet | None = None,
    after: AfterRun | None = None,
) -> None:
    """Run or resume the recipe; its output goes to its log, its events to `progress`.

    Data that is not given is opened here. `after` is called with the finished run, its data and the device, while the
    run is claimed.
    """
    run_id = recipe.run_id
    try:
        with claim(out / run_id):  # only a check: `train` claims the run itself
            pass
    except ClaimedError:
        progress(Event(run_id, kind="elsewhere", worker=worker))
        return
    except (RunError, OSError) as error:  # no place for the run, nor for its log
        progress(Event(run_id, kind="failed", text=f"{type(error).__name__}: {error}", worker=worker))
        return
    log = out / run_id / LOG
    reporter = _Reporter(recipe, progress, worker, log)
    progress(Event(run_id, 0, recipe.steps, kind="started", worker=worker))
    try:
        with _logged(log):
            end = _train(recipe, out, device, reporter, data, after)
    except RunError as error:  # the log cannot be opened
        end = Event(run_id, kind="failed", text=f"{type(error).__name__}: {error}")
    progress(replace(end, worker=worker))


def _train(
    recipe: Recipe, out: Path, device: str, reporter: _Reporter, data: DomainSet | None, after: AfterRun | None
) -> Event:
    """Train and measure; return the last event."""
    try:
        if data is None:
            data = open_data(recipe.data, **recipe.reading)
        folder = train(recipe, out, device=device, progress=reporter, data=data, warn=reporter.warn)
        if after is not None:
            gc.collect()  # captured steps are in reference cycles and hold memory of the device
            with folder.claimed():
                after(folder, data, device)
        text = accuracies(folder.read_result(), recipe)  # of the selected weights, as in the tables
        return Event(recipe.run_id, recipe.steps, recipe.steps, text=text, kind="done")
    except ClaimedError:
        return Event(recipe.run_id, kind="elsewhere")
    except Interrupted as stop:
        return Event(recipe.run_id, kind="stopped", text=str(stop))
    except Exception as error:
        with suppress(OSError):  # the disk may be full
            traceback.print_exc()
        return Event(recipe.run_id, kind="failed", text=f"{type(error).__name__}: {error}")


class _Reporter:
    """Turn the loop's events into those of a benchmark, a few per second, and into lines of the log."""

    def __init__(self, recipe: Recipe, progress: Progress, worker: str, log: Path) -> None:
        self.recipe, self.progress, self.worker, self.log = recipe, progress, worker, log
        self._done, self._text, self._last = 0, "", 0.0

    def __call__(self, event: Event) -> None:
        now = time.monotonic()
        if event.task != "step":  # features of a frozen backbone, or the final evaluation
            if event.kind == "progress" and (event.total is None or now - self._last > REPORT_EVERY):
                self._last, done = now, self._done
                self.progress(Event(self.recipe.run_id, done, self.recipe.steps, text=event.line(), worker=self.worker))
            return
        self._done = event.done
        if event.record is not None:
            self._text = accuracies(event.record, self.recipe)
            self._print(f"step {event.done}: {self._text}")
        if event.record is not None or now - self._last > REPORT_EVERY:
            self._last = now
            self.progress(replace(event, task=self.recipe.run_id, text=self._text, worker=self.worker))

    def warn(self, warning: Warning) -> None:
        self._print(f"mecam: {warning}")
        self.progress(Event(self.recipe.run_id, kind="warning", text=str(warning), worker=self.worker))

    def _print(self, line: str) -> None:
        with writing(self.log):
            print(visible(line), flush=True)


@contextmanager
def _logged(file: Path) -> Iterator[None]:
    """Append to the file what this process prints, also from libraries below Python."""
    file.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    with writing(file), open(file, "ab", buffering=0, opener=open_plain) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        for number, original in zip((1, 2), kept, strict=True):
            os.dup2(original, number)
            os.close(original)


def log_tail(out: Path, run_id: str, lines: int = 12) -> str:
    """Return the last lines of a run's log."""
    try:
        with open(out / run_id / LOG, "rb", opener=open_plain) as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - LOG_TAIL))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(no log)"
