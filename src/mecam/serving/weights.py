"""Read the weights of a run: the selected ones of a finished run, otherwise the best so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mecam.models.lora import merged
from mecam.recipe import recipe_of
from mecam.runs import RunError, RunFolder
from mecam.runs.claim import is_claimed


@dataclass(frozen=True)
class Weights:
    """The weights of a run, what is needed to use them, and a note if the run has not finished."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    stopped: str | None = None


def read_weights(folder: RunFolder) -> Weights:
    """Return the weights that the run selected; those of its last checkpoint if it has not finished."""
    if folder.is_done():
        return Weights(*folder.read_model())
    state = folder.load_checkpoint()
    if state is None:
        raise _none_error(folder, "it has no checkpoint yet")
    best, facts = state["best"], state.get("facts")
    if not best["weights"]:
        raise _none_error(folder, f"it was stopped after step {state['step']}, before its first evaluation")
    if facts is None:
        raise _none_error(folder, "its checkpoint, of an earlier version of mecam, does not describe the network")
    weights = merged({**state.get("frozen", {}), **best["weights"]})
    return Weights(weights, facts, f"{where(folder, state['step'])}: these are its best weights so far, "
                   f"of step {best['step']}. Its command resumes it")  # fmt: skip


def where(folder: RunFolder, step: int) -> str:
    """Return where a run that has not finished is, in words."""
    state = "is running; its last checkpoint is of" if is_claimed(folder.path) else "was stopped after"
    return f"the run in {folder.path} {state} step {step} of {recipe_of(folder.path).steps}"


def _none_error(folder: RunFolder, why: str) -> RunError:
    return RunError(
        f"the run in {folder.path} is not finished and has no model: {why}. Run its mecam train command again to "
        "resume it; after an evaluation, Ctrl-C saves a model that can be used"
    )
