"""Watching a run: a progress bar on a terminal, plain lines elsewhere, TensorBoard on request."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mecam.recipe import Recipe
from mecam.training.loop import Progress, Watcher


def mean_accuracy(record: dict[str, Any], recipe: Recipe) -> tuple[float, float | None]:
    """The mean accuracy on the sources' held-out parts, and the target's; in percent."""
    splits = record["splits"]
    held_out = [m["accuracy"] for n, m in splits.items() if n.endswith(" out") and n != f"{recipe.target} out"]
    target = splits.get(f"{recipe.target} in")
    return 100 * sum(held_out) / len(held_out), None if target is None else 100 * target["accuracy"]


def summary(record: dict[str, Any], recipe: Recipe) -> str:
    """An evaluation in a few words."""
    validation, target = mean_accuracy(record, recipe)
    words = f"step {record['step']}: source validation {validation:.1f} %"
    return words if target is None else f"{words}, {recipe.target} (unseen) {target:.1f} %"


@contextmanager
def watching(recipe: Recipe, tensorboard: Path | None = None, *, quiet: bool = False) -> Iterator[Watcher]:
    """A watcher for `train`."""
    watchers: list[Watcher] = []
    closing: list[Callable[[], None]] = []
    if tensorboard is not None:
        watchers.append(_tensorboard(tensorboard, closing))
    if not quiet:
        watchers.append(_bar(recipe, closing) if sys.stderr.isatty() else _lines(recipe))
    try:

        def watch_all(progress: Progress) -> None:
            for watch in watchers:
                watch(progress)

        yield watch_all
    finally:
        for close in closing:
            close()


def _lines(recipe: Recipe) -> Watcher:
    def watch(progress: Progress) -> None:
        if progress.record is not None:
            print(summary(progress.record, recipe), file=sys.stderr)

    return watch


def _bar(recipe: Recipe, closing: list[Callable[[], None]]) -> Watcher:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    bar = Bar(*columns, TextColumn("{task.fields[words]}"), console=Console(stderr=True))
    task = bar.add_task("training", total=recipe.steps + 1, words="")
    bar.start()
    closing.append(bar.stop)
    started, accuracies = time.perf_counter(), ""
    first: int | None = None

    def watch(progress: Progress) -> None:
        nonlocal accuracies, first
        first = progress.step if first is None else first
        if progress.record is not None:
            validation, target = mean_accuracy(progress.record, recipe)
            accuracies = f"val {validation:.1f} %" + ("" if target is None else f", {recipe.target} {target:.1f} %")
        steps_a_second = (progress.step - first + 1) / (time.perf_counter() - started)
        loss = "" if progress.loss is None else f"loss {progress.loss:.3f}, "
        images = steps_a_second * recipe.batch
        bar.update(task, completed=progress.step + 1, words=f"{loss}{accuracies}, {images:.0f} images/s and domain")

    return watch


def _tensorboard(folder: Path, closing: list[Callable[[], None]]) -> Watcher:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except Exception as error:  # a broken optional package can raise anything
        raise ImportError(f"TensorBoard cannot be used ({error}): pip install 'mecam[tensorboard]'") from error
    writer = SummaryWriter(str(folder / "tensorboard"))
    closing.append(writer.close)

    def watch(progress: Progress) -> None:
        if progress.record is not None:
            for split, metrics in progress.record["splits"].items():
                for name in ("accuracy", "loss"):
                    writer.add_scalar(f"{split}/{name}", metrics[name], progress.step)

    return watch


@contextmanager
def packing() -> Iterator[Callable[[Any], None] | None]:
    """A progress bar for `pack`, on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True)) as bar:
        task = bar.add_task("packing", total=None)
        yield lambda p: bar.update(task, completed=p.done, total=p.total)
