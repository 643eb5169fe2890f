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
        accuracies = _accuracies(splits, run.read_run()["recipe"]["target"])
    except UNREADABLE as error:
        return f"cannot be read: {error}"
    return ", ".join([state, *(f"{value} {name}" for name, value in accuracies[:1])])


def summary(run: RunFolder) -> str:
    """Return a line per fact about a run."""
    recipe = run.read_run()["recipe"]
    state, weights, splits = _progress(run)
    rows = [(name, str(recipe[name])) for name in PARTS if name in recipe]
    rows += [("state", state), *([("weights", weights)] if weights else [])]
    rows += [(f"accuracy {name}", value) for name, value in _accuracies(splits, recipe["target"])]
    if (timing := read_timing(run.path)) is not None:
        rows.append(("time", f"{clock(timing.seconds)} for {timing.steps:,} steps"))
    rows.append(("folder", str(run.path)))
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


def _accuracies(splits: Mapping[str, Any], target: str | None) -> list[tuple[str, str]]:
    """Return what is known of the accuracies: on which images, and how much."""
    accuracy = summarize(splits, target)
    shares = {
        f"on {target}, unseen": accuracy.target,
        f"on {target}, unseen, balanced": balanced_accuracy(splits, target),
        "on the sources' held-out images": accuracy.validation,
    }
    return [(name, f"{100 * share:.1f} %") for name, share in shares.items() if share is not None]
