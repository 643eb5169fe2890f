"""Run folders with results of our choice: what tables read, without the training. And runs that were stopped."""

import json
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from mecam.benchmark.jobs import Queue
from mecam.benchmark.worker import work
from mecam.progress import Event, Progress
from mecam.recipe import Recipe
from mecam.storage.checksums import digest, seal
from mecam.training import Interrupted, train


def run_here(engine: Any, recipes: Sequence[Recipe], out: Path, progress: Progress) -> None:
    """Do what an engine's `run` does, in this process."""
    queue = Queue(recipes, engine.budget)
    while (recipe := queue.take()) is not None:
        work(recipe, out, "cpu", progress, after=engine.after)
    for recipe in queue.rest():
        progress(Event(recipe.run_id, kind="stopped", text="not begun"))


def stop_run(out: Path, recipe: Recipe, count: int) -> None:
    """Train with this many threads, and stop after step 1."""

    def stop(event: Event) -> None:
        if event.done == 1:
            signal.raise_signal(signal.SIGTERM)

    with with_threads(count), suppress(Interrupted):
        train(recipe, out, device="cpu", progress=stop)


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    """Runs of this process have this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def write_run(
    out: Path,
    accuracy: float | None,
    *,
    validation: float = 0.5,
    images: str = "x",
    recall: Sequence[float | None] = (),
    environment: Any = None,
    evaluations: Mapping[int, float] | None = None,
    **values: Any,
) -> Path:
    """Write a finished run that reached these fractions, or an unfinished one.

    `images` is its data's fingerprint, `evaluations` its accuracy on the target by step, `recall` that of each class.
    """
    recipe = Recipe(**{"target": "art", **values})
    folder = out / recipe.run_id
    folder.mkdir(parents=True)
    run = {"id": recipe.run_id, "recipe": recipe.to_dict(), "environment": environment or {}}
    (folder / "run.json").write_bytes(seal(run))
    if accuracy is not None:
        domains = ("art", "cartoon", "photo", "sketch")
        splits: dict[str, dict[str, Any]] = {
            f"{domain} out": {"accuracy": validation} for domain in domains if domain != recipe.target
        }
        splits[f"{recipe.target} out"] = {"accuracy": 1 - accuracy}
        if recall:
            there = [value for value in recall if value is not None]
            balanced = {"accuracy": accuracy, "balanced_accuracy": sum(there) / len(there), "recall": list(recall)}
            splits[f"{recipe.target} in"] = balanced
        result = {"target_accuracy": accuracy, "splits": splits, "selected_step": 0, "data": images}
        records = [
            {"step": step, "splits": {**_metrics(splits), f"{recipe.target} in": {"accuracy": reached, "loss": 1.0}}}
            for step, reached in (evaluations or {0: accuracy}).items()
        ]
        (folder / "records.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
        write_done(folder, result)
    return folder


def write_done(folder: Path, result: Mapping[str, Any]) -> None:
    """Write done.json, with the checksums of the files that are there."""
    sums = {name: digest((folder / name).read_bytes()) for name in ("run.json", "records.jsonl")}
    (folder / "done.json").write_bytes(seal({"result": result, "sha256": sums}))


def _metrics(splits: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {name: {"loss": 1.0, **metrics} for name, metrics in splits.items()}
