"""Measure the overhead of a benchmark around training, from the start of the first run to the end of the last.

    python benchmarks/engine_overhead.py
    python benchmarks/engine_overhead.py --optimizer adam --steps 100

One worker of the local engine does the runs one after another. Training is the time inside `train` without its reports
(events, the log). The rest of the time from the first "started" to the last "done" is overhead: scheduling, claims,
logs, events, timing files. The live view and bench.log are written as by `mecam bench`. The start of the worker, with
its imports, is reported separately, since it happens once and not once per run.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import heading, parse, publish, table
from mecam.benchmark import worker
from mecam.benchmark.experiment import run_missing, shown_and_logged
from mecam.benchmark.local import LocalEngine
from mecam.progress import Event
from mecam.recipe import Recipe
from mecam.training import train as bare

MEASURED = "overhead.json"


def timed(recipe: Recipe, out: Path, *, progress: Any, **options: Any) -> None:
    """Train, and write the time without reports to a file next to the run's."""
    reporting = 0.0

    def timed_progress(event: Event) -> None:
        nonlocal reporting
        before = time.perf_counter()
        progress(event)
        reporting += time.perf_counter() - before

    start = time.perf_counter()
    bare(recipe, out, progress=timed_progress, **options)
    seconds = time.perf_counter() - start
    (out / recipe.run_id / MEASURED).write_text(json.dumps({"training": seconds - reporting, "reporting": reporting}))


worker.train = timed  # here and in the worker, which imports this file


def main() -> None:
    options = parse(__doc__, device="cpu", optimizer="mecam", steps=300, runs=5)
    values = {"target": "art", "optimizer": options.optimizer, "steps": options.steps}
    recipes = [Recipe(**{**values, "seed": seed}) for seed in range(options.runs)]
    with tempfile.TemporaryDirectory() as folder:
        times, driver = measure(recipes, Path(folder), options.device)
        measured = [json.loads((Path(folder) / recipe.run_id / MEASURED).read_text()) for recipe in recipes]
    training, reporting = (sum(run[name] for run in measured) for name in ("training", "reporting"))
    elapsed = times["done"] - times["started"]
    rows = [
        ["training", f"{training:.2f}", ""],
        ["events and log lines while training", f"{reporting:.3f}", share(reporting, training)],
        ["all of the benchmark around it", f"{elapsed - training:.3f}", share(elapsed - training, training)],
        ["processor time of the benchmark's own process", f"{driver:.3f}", share(driver, training)],
        ["once: a worker starts and imports", f"{times['started'] - times['called']:.2f}", ""],
        ["once: it ends", f"{times['returned'] - times['done']:.2f}", ""],
    ]
    facts = {
        "setting": f"shapes, {recipes[0].backbone}, {options.optimizer}, {options.steps} steps per run, one worker",
        "repeats": f"{options.runs} runs, one after another",
    }
    header = ["", "seconds", "share of training"]
    publish([*heading("The benchmark around training", options.device, facts), *table(header, rows)], options.out)


def measure(recipes: list[Recipe], out: Path, device: str) -> tuple[dict[str, float], float]:
    """Record event times, and the processor time of this process between the runs' start and end."""
    times = {"called": time.perf_counter()}
    cpu: dict[str, float] = {}

    def note(event: Event) -> None:
        if event.kind == "started":
            times.setdefault("started", time.perf_counter())
            cpu.setdefault("started", sum(os.times()[:2]))
        if event.kind == "done":
            times["done"], cpu["done"] = time.perf_counter(), sum(os.times()[:2])

    with shown_and_logged(len(recipes), 0, out) as progress:

        def both(event: Event) -> None:
            progress(event)
            note(event)

        outcome = run_missing(recipes, out, engine=LocalEngine(workers=1, device=device), progress=both)
    times["returned"] = time.perf_counter()
    if len(outcome.done) != len(recipes):
        sys.exit(f"these runs did not end well: {outcome.failed or outcome.stopped}")
    return times, cpu["done"] - cpu["started"]


def share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.2f} %"


if __name__ == "__main__":
    main()
