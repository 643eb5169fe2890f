"""Where a step goes on a CPU, and which ways of running it pay: the training loop's own steps on the embedded set.

    python benchmarks/cpu.py --out benchmarks/results/cpu.md

The parts are processor time of this program, so that other programs on the machine count little. "between the passes"
is all that is in no other part: perturbing, restoring, combining gradients, bookkeeping. The ways (precision, layout of
images and weights, torch.compile) take turns, and their ratios are medians over rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from machine import heading, publish, table
from mecam.data.open import open_data
from mecam.methods import Batch
from mecam.recipe import make
from mecam.training.machine import find_machine
from mecam.training.run import Run

WARM_UP = 3
WAYS = {
    "as it is: fp32, channels last": {},
    "contiguous": {"contiguous": True},
    "bf16": {"precision": "bf16"},
    "compiled": {"compile": True},
}


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    rows = [[f"{name}: {part}", *cells] for name in ("adam", "sam", "mecam") for part, cells in parts(name, options)]
    facts = {
        "setting": f"resnet8 on shapes, 3 x {options.batch} images of 32 px, {options.threads} threads",
        "repeats": f"{options.rounds} rounds of {options.burst} steps after {WARM_UP} of warm-up",
    }
    lines = [*heading("A step on a CPU", "cpu", facts), *table(["part", "ms a step", "share"], rows)]
    publish([*lines, *table(["way", "ms a step", "to as it is"], ways(options))], options.out)


def parts(optimizer: str, options: argparse.Namespace) -> list[tuple[str, list[str]]]:
    """The processor time of a step by part."""
    run = build(options, optimizer=optimizer)
    spent: defaultdict[str, float] = defaultdict(float)
    base: Any = getattr(run.optimizer, "base_optimizer", run.optimizer)
    run.feed.next = timed(run.feed.next, spent, "batch")  # type: ignore[method-assign]
    run.method.gradient = timed(run.method.gradient, spent, "passes")  # type: ignore[method-assign]
    if base is not run.optimizer:
        base.step = timed(base.step, spent, "update")
    for step in range(WARM_UP):
        run.step(step)
    spent.clear()
    steps = options.rounds * options.burst
    start = time.process_time()
    for step in range(WARM_UP, WARM_UP + steps):
        run.step(step)
    whole = time.process_time() - start
    rest = "between the passes" if base is not run.optimizer else "update and the rest"
    spent[rest] = whole - sum(spent.values())
    shown = [(part, [f"{1000 * used / steps:.2f}", f"{100 * used / whole:.1f} %"]) for part, used in spent.items()]
    return [*shown, ("all", [f"{1000 * whole / steps:.2f}", ""])]


def timed(function: Callable[..., Any], spent: dict[str, float], part: str) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **named: Any) -> Any:
        start = time.process_time()
        found = function(*arguments, **named)
        spent[part] += time.process_time() - start
        return found

    return wrapped


def ways(options: argparse.Namespace) -> list[list[str]]:
    """Milliseconds of an ERM step in each way."""
    runs = {name: build(options, optimizer="adam", **WAYS[name]) for name in options.ways}
    for run in runs.values():
        burst(run, WARM_UP)
    taken = [{name: burst(run, options.burst) for name, run in runs.items()} for _ in range(options.rounds)]
    first = options.ways[0]
    return [
        [
            name,
            f"{1000 * statistics.median(each[name] for each in taken):.1f}",
            f"{statistics.median(each[name] / each[first] for each in taken):.2f}",
        ]
        for name in options.ways
    ]


def build(options: argparse.Namespace, *, contiguous: bool = False, **values: Any) -> Run:
    recipe = make({"target": "sketch", "batch": options.batch, "steps": 10**6, **values})
    run = Run(recipe, find_machine("cpu", recipe.precision), open_data("shapes"))
    if contiguous:
        run.trained.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        take = run.feed.next

        def next_batch(step: int) -> Batch:
            batch = take(step)
            return Batch(batch.images.contiguous(), batch.labels, batch.domains, batch.step)

        run.feed.next = next_batch  # type: ignore[method-assign]
    return run


def burst(run: Run, steps: int) -> float:
    """Seconds a step, of processor time."""
    start = time.process_time()
    for step in range(steps):
        run.step(step)
    return (time.process_time() - start) / steps


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--burst", type=int, default=5)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
