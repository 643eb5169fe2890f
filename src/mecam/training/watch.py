"""Show a training run: a bar on a terminal, a line per evaluation elsewhere, TensorBoard on request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from mecam.progress import Event, Pace, Progress, at_tenths, shown
from mecam.recipe import Recipe
from mecam.splits import summarize


def accuracies(record: Mapping[str, Any], recipe: Recipe) -> str:
    """Describe an evaluation: the mean accuracy on the sources' held-out parts, if any, and the target's."""
    summary = summarize(record["splits"], recipe.target)
    named = {"source validation": summary.validation, f"{recipe.target} (unseen)": summary.target}
    return ", ".join(f"{name} {100 * value:.1f} %" for name, value in named.items() if value is not None)


def description(recipe: Recipe, sources: int, pace: Pace | None = None) -> Callable[[Event], str]:
    """Return a function that describes steps: loss, accuracies of an evaluation, images per second."""
    pace = pace or Pace()

    def describe(event: Event) -> str:
        seconds = pace(event)
        loss = "" if event.loss is None else f"loss {event.loss:.3f}"
        evaluated = "" if event.record is None else accuracies(event.record, recipe)
        speed = "" if seconds is None else f"{sources * recipe.batch / seconds:,.0f} images/s"
        return ", ".join(filter(None, (loss, evaluated, speed)))

    return describe


@contextmanager
def watching(
    recipe: Recipe, sources: int, *, tensorboard: Path | None = None, quiet: bool = False
) -> Iterator[Progress]:
    """Yield the progress function for `train` on this many source domains; `tensorboard` is a folder for its events."""
    with ExitStack() as stack:
        write = None if tensorboard is None else _tensorboard(tensorboard, stack)
        tenths = at_tenths()

        def lines(event: Event) -> bool:
            return event.record is not None if event.task == "step" else tenths(event)

        show = stack.enter_context(shown(quiet=quiet, lines=lines, above=lambda event: event.record is not None))
        describe = description(recipe, sources)

        def progress(event: Event) -> None:
            if event.task != "step":  # features of a frozen backbone, the final evaluation
                show(event)
                return
            if write is not None:
                write(event)
            show(replace(event, text=describe(event)))

        yield progress


def _tensorboard(folder: Path, stack: ExitStack) -> Progress:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except Exception as error:  # a broken optional package can raise anything
        raise ImportError(f"TensorBoard cannot be used ({error}): pip install 'mecam[tensorboard]'") from error
    writer: Any = None

    def write(event: Event) -> None:
        nonlocal writer
        if event.record is None:
            return
        if writer is None:  # steps that a killed session logged beyond its checkpoint are purged
            writer = SummaryWriter(str(folder), purge_step=event.done)
            stack.callback(writer.close)
        if event.loss is not None:
            writer.add_scalar("training/loss", event.loss, event.done)
        for split, metrics in event.record["splits"].items():
            for name in ("accuracy", "loss"):
                writer.add_scalar(f"{split}/{name}", metrics[name], event.done)

    return write
