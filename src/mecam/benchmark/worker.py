"""One run of a benchmark in a process of its own: its log, its time, its events."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mecam.benchmark.jobs import Event
from mecam.data.domains import DomainSet
from mecam.data.open import open_data
from mecam.data.pack import OnError
from mecam.recipe import Recipe
from mecam.runs import ClaimedError, RunError, claim, write_atomic
from mecam.training import Interrupted, Progress, train
from mecam.training.watch import mean_accuracy, summary

LOG, TIMING = "log.txt", "timing.json"
TELL_EVERY = 0.5  # seconds between two events of progress


def work(
    recipe: Recipe,
    out: Path,
    device: str,
    tell: Callable[[Event], None],
    worker: str = "",
    *,
    data: DomainSet | None = None,
    on_error: OnError = "refuse",
) -> None:
    """Run the recipe, or go on with it; everything it prints goes to its log, everything else to `tell`.

    Data that is not given is opened here; `on_error` says what images that cannot be read do then.
    """
    run_id = recipe.run_id
    try:
        with claim(out / run_id):  # a look: `train` claims it for its time
            pass
    except ClaimedError:
        tell(Event(run_id, "elsewhere", worker=worker))
        return
    except (RunError, OSError) as error:  # no place for the run, nor for its log
        tell(Event(run_id, "failed", message=f"{type(error).__name__}: {error}", worker=worker))
        return
    teller = _Teller(recipe, tell, worker)
    start = time.monotonic()
    tell(Event(run_id, "started", steps=recipe.steps, worker=worker))
    with _logged(out / run_id / LOG):
        try:
            if data is None:
                data = open_data(recipe.data, on_error=on_error)
            folder = train(recipe, out, device=device, watch=teller, data=data, warn=teller.warn)
            found = mean_accuracy(folder.read_result(), recipe)  # of the weights selected, as in the tables
            end = Event(run_id, "done", recipe.steps, recipe.steps, *found, worker=worker)
        except ClaimedError:
            end = Event(run_id, "elsewhere", worker=worker)
        except Interrupted as stop:
            end = Event(run_id, "stopped", message=str(stop), worker=worker)
        except Exception as error:
            traceback.print_exc()
            end = Event(run_id, "failed", message=f"{type(error).__name__}: {error}", worker=worker)
    if teller.steps:
        timing = {"seconds": time.monotonic() - start, "steps": teller.steps}
        with suppress(RunError, OSError):  # the run is worth more than its time
            write_atomic(out / run_id / TIMING, json.dumps(timing).encode())
    tell(end)


class _Teller:
    """Turns the loop's progress into events, a few a second, and lines in the log."""

    def __init__(self, recipe: Recipe, tell: Callable[[Event], None], worker: str) -> None:
        self.recipe, self.tell, self.worker = recipe, tell, worker
        self.steps = 0
        self.accuracy: float | None = None
        self.target: float | None = None
        self._told = 0.0

    def __call__(self, progress: Progress) -> None:
        self.steps += 1
        if progress.record is not None:
            self.accuracy, self.target = mean_accuracy(progress.record, self.recipe)
            print(summary(progress.record, self.recipe), flush=True)
        now = time.monotonic()
        if progress.record is not None or now - self._told > TELL_EVERY:
            self._told = now
            event = Event(
                self.recipe.run_id,
                "progress",
                progress.step,
                progress.steps,
                self.accuracy,
                self.target,
                worker=self.worker,
            )
            self.tell(event)

    def warn(self, warning: Warning) -> None:
        print(f"mecam: {warning}", flush=True)
        self.tell(Event(self.recipe.run_id, "warning", message=str(warning), worker=self.worker))


@contextmanager
def _logged(file: Path) -> Iterator[None]:
    """What this process and the libraries in it print goes to the file, below Python too."""
    file.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    with open(file, "ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, original in zip((1, 2), kept, strict=True):
            os.dup2(original, number)
            os.close(original)


def log_tail(out: Path, run_id: str, lines: int = 12) -> str:
    """The last lines of a run's log."""
    try:
        return "\n".join((out / run_id / LOG).read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
    except OSError:
        return "(no log)"
