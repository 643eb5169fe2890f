"""Measure the parts of a training step on a CPU, and compare ways to run it, on the embedded set.

    python benchmarks/cpu.py --out benchmarks/results/cpu.md

The parts are processor time of this program, which other programs hardly affect. "Between the passes" are torch's
kernels over all weights (norms, copies, sums) and the remaining Python: perturbing, restoring, combining gradients,
bookkeeping. The ways (precision, layout of images and weights, torch.compile) alternate; their ratios are medians over
rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch

from machine import heading, parse, publish, table
from mecam.data.open import open_data
from mecam.methods import Batch
from mecam.recipe import Recipe
from mecam.training.machine import find_machine
from mecam.training.run import Run
from mecam.training.step import train_step

WARM_UP = 3
KERNELS = [name for name in dir(torch) if name.startswith("_foreach_")]
WAYS = {
    "as it is: fp32, channels last": {},
    "contiguous": {"contiguous": True},
    "bf16": {"precision": "bf16"},
    "compiled": {"compile": "always"},
}


def main() -> None:
    options = parse(__doc__, ways=list(WAYS), threads=1, batch=32, rounds=5, burst=5)
    torch.set_num_threads(options.threads)
    rows = [[f"{name}: {part}", *cells] for name in ("adam", "sam", "mecam") for part, cells in parts(name, options)]
    facts = {
        "setting": f"resnet8 on shapes, 3 x {options.batch} images of 32 px, {options.threads} threads",
        "repeats": f"{options.rounds} rounds of {options.burst} steps after {WARM_UP} of warm-up",
    }
    lines = [*heading("A step on a CPU", "cpu", facts), *table(["part", "ms per step", "share"], rows)]
    publish([*lines, *table(["way", "ms per step", "to as it is"], ways(options))], options.out)


def parts(optimizer: str, options: argparse.Namespace) -> list[tuple[str, list[str]]]:
    """Return the processor time of a step by part."""
    run = build(options, optimizer=optimizer)
    clock = Clock()
    with ExitStack() as stack:
        clock.watch(stack, run.feed, "next", "batch")
        clock.watch(stack, run.method, "gradient", "passes")
        clock.watch(stack, run.optimizer.base_optimizer, "step", "update")
        for kernel in KERNELS:
            clock.watch(stack, torch, kernel, "kernels over all weights")
        for step in range(WARM_UP):
            train_step(run, step)
        clock.spent.clear()
        steps = options.rounds * options.burst
        start = time.process_time()
        for step in range(WARM_UP, WARM_UP + steps):
            train_step(run, step)
        whole = time.process_time() - start
    clock.spent["Python between the passes"] = whole - sum(clock.spent.values())
    shown = [(part, [f"{1000 * t / steps:.2f}", f"{100 * t / whole:.1f} %"]) for part, t in clock.spent.items()]
    return [*shown, ("all", [f"{1000 * whole / steps:.2f}", ""])]


class Clock:
    """Return processor time by part; a nested part counts for the outer one."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.inside = False

    def watch(self, stack: ExitStack, owner: Any, name: str, part: str) -> None:
        function = getattr(owner, name)

        def wrapped(*arguments: Any, **named: Any) -> Any:
            if self.inside:
                return function(*arguments, **named)
            self.inside, start = True, time.process_time()
            try:
                return function(*arguments, **named)
            finally:
                self.spent[part] += time.process_time() - start
                self.inside = False

        stack.enter_context(patch.object(owner, name, wrapped))


def ways(options: argparse.Namespace) -> list[list[str]]:
    """Return the milliseconds of an ERM step, for each way to run it."""
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
    recipe = Recipe(**{"target": "sketch", "batch": options.batch, "steps": 10**6, **values})
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
    """Return seconds of processor time per step."""
    start = time.process_time()
    for step in range(steps):
        train_step(run, step)
    return (time.process_time() - start) / steps


if __name__ == "__main__":
    main()
