"""Watching a run: a progress bar on a terminal, plain lines elsewhere, TensorBoard on request."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from mecam.data.pack import Progress as Packed
from mecam.data.pack import Report
from mecam.recipe import Recipe
from mecam.training.loop import Progress, Watcher

Clock = Callable[[], float]


def mean_accuracy(record: dict[str, Any], recipe: Recipe) -> tuple[float, float | None]:
    """The mean accuracy on the sources' held-out parts, NaN without any, and the target's; in percent."""
    splits = record["splits"]
    held_out = [m["accuracy"] for n, m in splits.items() if n.endswith(" out") and n != f"{recipe.target} out"]
    target = splits.get(f"{recipe.target} in")
    validation = 100 * sum(held_out) / len(held_out) if held_out else math.nan
    return validation, None if target is None else 100 * target["accuracy"]


def summary(record: dict[str, Any], recipe: Recipe) -> str:
    """An evaluation in a few words."""
    return f"step {record['step']}: {', '.join(_accuracies(record, recipe))}"


class Words:
    """What there is to say about a run: loss, accuracies of the last evaluation, images a second, time left.

    The speed counts this session's steps, evaluations included, from the end of its first one: what the run did before
    it was resumed says nothing about this machine now.
    """

    def __init__(self, recipe: Recipe, sources: int, clock: Clock = time.perf_counter) -> None:
        self.recipe, self.clock = recipe, clock
        self.images = sources * recipe.batch  # a step
        self.accuracies: list[str] = []
        self.start: tuple[int, float] | None = None

    def __call__(self, progress: Progress) -> str:
        if progress.record is not None:
            self.accuracies = _accuracies(progress.record, self.recipe)
        loss = [] if progress.loss is None else [f"loss {progress.loss:.3f}"]
        return ", ".join((*loss, *self.accuracies, *self._speed(progress)))

    def _speed(self, progress: Progress) -> list[str]:
        now = self.clock()
        if self.start is None:
            self.start = progress.step, now
        first, since = self.start
        if progress.step == first or now <= since:
            return []
        a_step = (now - since) / (progress.step - first)
        left = timedelta(seconds=round(a_step * (progress.steps - progress.step)))
        return [f"{self.images / a_step:,.0f} images/s", f"{left} left"]


@contextmanager
def watching(
    recipe: Recipe, sources: int, *, tensorboard: Path | None = None, quiet: bool = False
) -> Iterator[Watcher]:
    """A watcher for `train` on this many source domains; `tensorboard` is the folder for its events."""
    watchers: list[Watcher] = []
    closing: list[Callable[[], None]] = []
    if tensorboard is not None:
        watchers.append(_tensorboard(tensorboard, closing))
    if not quiet:
        words = Words(recipe, sources)
        watchers.append(_bar(recipe, words, closing) if sys.stderr.isatty() else _lines(words))
    try:

        def watch_all(progress: Progress) -> None:
            for watch in watchers:
                watch(progress)

        yield watch_all
    finally:
        for close in closing:
            close()


@contextmanager
def packing(*, quiet: bool = False) -> Iterator[Report | None]:
    """Progress of `pack`: a bar on a terminal; elsewhere a line for each phase, and for each tenth of it."""
    if quiet:
        yield None
    elif not sys.stderr.isatty():
        yield _packing_lines()
    else:
        from rich.console import Console
        from rich.progress import Progress as Bar

        with Bar(console=Console(stderr=True)) as bar:
            task = bar.add_task("", total=None, visible=False)
            yield lambda p: bar.update(
                task, description=_phase(p), completed=p.done, total=p.total or None, visible=True
            )


def _accuracies(record: dict[str, Any], recipe: Recipe) -> list[str]:
    validation, target = mean_accuracy(record, recipe)
    seen = [] if math.isnan(validation) else [f"source validation {validation:.1f} %"]
    unseen = [] if target is None else [f"{recipe.target} (unseen) {target:.1f} %"]
    return [*seen, *unseen]


def _lines(words: Words) -> Watcher:
    def watch(progress: Progress) -> None:
        said = words(progress)  # at every step: the clock starts at the first
        if progress.record is not None:
            print(f"step {progress.step} of {progress.steps}: {said}", file=sys.stderr, flush=True)

    return watch


def _bar(recipe: Recipe, words: Words, closing: list[Callable[[], None]]) -> Watcher:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    said = TextColumn("{task.fields[words]}", markup=False)  # domains may have brackets in their names
    bar = Bar(TextColumn("training"), BarColumn(20), MofNCompleteColumn(), said, console=Console(stderr=True))
    task = bar.add_task("", total=recipe.steps, words="")
    bar.start()
    closing.append(bar.stop)
    return lambda progress: bar.update(task, completed=progress.step, words=words(progress))


def _tensorboard(folder: Path, closing: list[Callable[[], None]]) -> Watcher:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except Exception as error:  # a broken optional package can raise anything
        raise ImportError(f"TensorBoard cannot be used ({error}): pip install 'mecam[tensorboard]'") from error
    writer: Any = None

    def watch(progress: Progress) -> None:
        nonlocal writer
        if progress.record is None:
            return
        if writer is None:  # what a killed session wrote beyond its checkpoint is not shown
            writer = SummaryWriter(str(folder), purge_step=progress.step)
            closing.append(writer.close)
        if progress.loss is not None:
            writer.add_scalar("training/loss", progress.loss, progress.step)
        for split, metrics in progress.record["splits"].items():
            for name in ("accuracy", "loss"):
                writer.add_scalar(f"{split}/{name}", metrics[name], progress.step)

    return watch


def _packing_lines() -> Report:
    said: tuple[str, int] | None = None

    def report(progress: Packed) -> None:
        nonlocal said
        stage = progress.phase, 10 * progress.done // max(progress.total, 1)
        if stage != said:
            said = stage
            of = f" {progress.done} of {progress.total} images" if progress.total else ""
            print(f"{_phase(progress)}{of}", file=sys.stderr, flush=True)

    return report


def _phase(progress: Packed) -> str:
    phases = {"waiting": "waiting for another process that packs the same images"}
    unreadable = f" ({progress.unreadable} unreadable)" if progress.unreadable else ""
    return phases.get(progress.phase, progress.phase) + unreadable
