"""Describe a run: what was trained, how far it is, and its accuracies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mecam.progress import clock
from mecam.runs.timing import read_timing
from mecam.splits import balanced_accuracy, summarize
from mecam.storage.files import RunError

if TYPE_CHECKING:
    from mecam.runs.folder import RunFolder

PARTS = ("data", "method", "optimizer", "averaging", "backbone", "trainable", "steps", "seed")
UNREADABLE = (RunError, OSError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError)


def in_words(run: RunFolder) -> str:
    """Return the state of a run and its accuracy on one line; why it cannot be read if so."""
    if not run.exists():
        return "not started"
    try:
        state, _, splits = _progress(run)
        known = accuracies(splits, run.read_run()["recipe"]["target"])
    except UNREADABLE as error:
        return f"cannot be read: {error}"
    return ", ".join([state, *(f"{value} {name.removeprefix('accuracy ')}" for name, value in known[:1])])


def summary(run: RunFolder) -> str:
    """Return a line per fact about a run."""
    recipe = run.read_run()["recipe"]
    state, weights, splits = _progress(run)
    rows = [*parts(recipe), ("state", state), *([("weights", weights)] if weights else [])]
    rows += [*accuracies(splits, recipe["target"]), *time_taken(run), ("folder", str(run.path))]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _progress(run: RunFolder) -> tuple[str, str, Mapping[str, Any]]:
    """Return how far a run is, which weights it selected, and their metrics, or those of its last evaluation."""
    steps = run.read_run()["recipe"]["steps"]
    if run.is_done():
        result = run.read_result()
        step = result["selected_step"]
        return "finished", "averaged" if step is None else f"of step {step} of {steps}", result["splits"]
    records = run.read_records()
    if not records:
        return "not evaluated yet", "", {}
    return f"not finished, evaluated at step {records[-1]['step']} of {steps}", "", records[-1]["splits"]


def parts(recipe: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the parts of a recipe."""
    return [(name, str(recipe[name])) for name in PARTS if name in recipe]


def time_taken(run: RunFolder) -> list[tuple[str, str]]:
    """Return the training time of a run, if it is known."""
    timing = read_timing(run.path)
    return [] if timing is None else [("time", f"{clock(timing.seconds)} for {timing.steps:,} steps")]


def accuracies(splits: Mapping[str, Any], target: str | None) -> list[tuple[str, str]]:
    """Return what is known of the accuracies: on which images, and how much."""
    accuracy = summarize(splits, target)
    shares = {
        f"accuracy on {target}, unseen": accuracy.target,
        f"accuracy on {target}, unseen, balanced": balanced_accuracy(splits, target),
        "accuracy on the sources' held-out images": accuracy.validation,
    }
    return [(name, f"{100 * share:.1f} %") for name, share in shares.items() if share is not None]
