"""What a benchmark adds around training: everything between the first run's start and the last one's end.

    python benchmarks/engine_overhead.py
    python benchmarks/engine_overhead.py --optimizer adam --steps 100

One worker of the local engine does the runs one after another. In that worker, `train` is timed from inside, and what
its watcher takes (events, the log) is taken off: that is training. What is left of the time from the first "started" to
the last "done" is the benchmark's: handing out, claims, logs, events, timing files. The live view and bench.log are
written as `mecam bench` does. Starting the worker, with its imports, is told apart: it comes once, not once a run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import heading, publish, table
from mecam.benchmark import view, worker
from mecam.benchmark.bench import bench
from mecam.benchmark.jobs import Event
from mecam.benchmark.local import LocalEngine
from mecam.recipe import Recipe, make
from mecam.training import Progress
from mecam.training import train as bare

MEASURED = "overhead.json"


def timed(recipe: Recipe, out: Path, *, watch: Any, **options: Any) -> None:
    """`train`, and how long it took without its watcher, in a file beside the run's."""
    watching = 0.0

    def watched(progress: Progress) -> None:
        nonlocal watching
        before = time.perf_counter()
        watch(progress)
        watching += time.perf_counter() - before

    start = time.perf_counter()
    bare(recipe, out, watch=watched, **options)
    seconds = time.perf_counter() - start
    (out / recipe.run_id / MEASURED).write_text(json.dumps({"training": seconds - watching, "watching": watching}))


worker.train = timed  # here, and in the worker, which imports this file too


def main() -> None:
    options = parse()
    values = {"target": "art", "optimizer": options.optimizer, "steps": options.steps}
    recipes = [make({**values, "seed": seed}) for seed in range(options.runs)]
    with tempfile.TemporaryDirectory() as folder:
        times, driver = measure(recipes, Path(folder), options.device)
        measured = [json.loads((Path(folder) / recipe.run_id / MEASURED).read_text()) for recipe in recipes]
    training, watching = (sum(run[name] for run in measured) for name in ("training", "watching"))
    elapsed = times["done"] - times["started"]
    rows = [
        ["training", f"{training:.2f}", ""],
        ["events and log lines while training", f"{watching:.3f}", share(watching, training)],
        ["all of the benchmark around it", f"{elapsed - training:.3f}", share(elapsed - training, training)],
        ["processor time of the benchmark's own process", f"{driver:.3f}", share(driver, training)],
        ["once: a worker starts and imports", f"{times['started'] - times['called']:.2f}", ""],
        ["once: it ends", f"{times['returned'] - times['done']:.2f}", ""],
    ]
    facts = {
        "setting": f"embedded set, {recipes[0].backbone}, {options.optimizer}, {options.steps} steps a run, one worker",
        "repeats": f"{options.runs} runs, one after another",
    }
    header = ["", "seconds", "share of training"]
    publish([*heading("The benchmark around training", options.device, facts), *table(header, rows)], options.out)


def measure(recipes: list[Recipe], out: Path, device: str) -> tuple[dict[str, float], float]:
    """When things happened, and the processor time of this process in between the runs' start and end."""
    times = {"called": time.perf_counter()}
    cpu: dict[str, float] = {}

    def note(event: Event) -> None:
        if event.kind == "started":
            times.setdefault("started", time.perf_counter())
            cpu.setdefault("started", sum(os.times()[:2]))
        if event.kind == "done":
            times["done"], cpu["done"] = time.perf_counter(), sum(os.times()[:2])

    with view.watching(len(recipes), 0, out) as watch:

        def both(event: Event) -> None:
            watch(event)
            note(event)

        outcome = bench(recipes, out, engine=LocalEngine(workers=1, device=device), watch=both)
    times["returned"] = time.perf_counter()
    if len(outcome.done) != len(recipes):
        sys.exit(f"these runs did not end well: {outcome.failed or outcome.stopped}")
    return times, cpu["done"] - cpu["started"]


def share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.2f} %"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--optimizer", default="mecam")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
