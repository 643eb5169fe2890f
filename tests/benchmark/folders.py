"""Run folders with results of our choice: what tables read, without the training. And runs that were stopped."""

import json
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from mecam.recipe import Recipe, make
from mecam.training import Interrupted, Progress, train


def stop_run(out: Path, recipe: Recipe, *, threads: int) -> None:
    """Train with this many threads, and stop after step 1."""

    def stop(progress: Progress) -> None:
        if progress.step == 1:
            signal.raise_signal(signal.SIGTERM)

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with suppress(Interrupted):
            train(recipe, out, device="cpu", watch=stop)
    finally:
        torch.set_num_threads(before)


def write_run(
    out: Path,
    accuracy: float | None,
    *,
    validation: float = 0.5,
    images: str = "x",
    environment: Any = None,
    **values: Any,
) -> Path:
    """A finished run that reached these fractions, or an unfinished one; `images` is its data's fingerprint."""
    recipe = make({"target": "art", **values})
    folder = out / recipe.run_id
    folder.mkdir(parents=True)
    run = {"id": recipe.run_id, "recipe": recipe.to_dict(), "environment": environment or {}}
    (folder / "run.json").write_text(json.dumps(run))
    if accuracy is not None:
        domains = ("art", "cartoon", "photo", "sketch")
        splits = {f"{domain} out": {"accuracy": validation} for domain in domains if domain != recipe.target}
        splits[f"{recipe.target} out"] = {"accuracy": 1 - accuracy}
        result = {"target_accuracy": accuracy, "splits": splits, "selected_step": 0, "data": images}
        (folder / "done.json").write_text(json.dumps({"result": result, "sha256": {}}))
    return folder
