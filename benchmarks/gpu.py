"""Measure a step of every optimizer and every method on a GPU, in milliseconds and relative to ERM.

    python benchmarks/gpu.py --out benchmarks/results/gpu_steps.md

ResNet-50, 3 x 32 images of 224 pixels, frozen batch norm, Adam, with the steps of the training loop from the middle of
a run: gathering, augmentation, passes, update. ERM is measured before and after each contender; the ratio in a round is
the contender's time over the mean of the two. "bare" excludes gathering and augmentation on both sides. The table flags
an optimizer above 1.05 times its passes, and a single-pass method above 1.3.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from typing import Any

import torch

from end_to_end import Noise, Still, synchronize
from machine import heading, parse, publish, table
from mecam.methods import METHODS
from mecam.optim import OPTIMIZERS
from mecam.recipe import Recipe
from mecam.training.machine import find_machine
from mecam.training.run import Run
from mecam.training.step import train_step
from method_cost import FIRST, MORE, STEPS

WARM_UP = 6
HOW = {"steps": "the step a graph", "passes": "each pass a graph", "nothing": "from Python"}


def main() -> None:
    options = parse(
        __doc__,
        optimizers=[name for name in OPTIMIZERS if name != "adam"],
        methods=[name for name in METHODS if name != "erm"],
        device="cuda",
        backbone="resnet50",
        image_size=224,
        stored=227,
        images=1600,
        batch=32,
        rounds=3,
        burst=12,
    )
    data = Noise(options.images, options.stored)
    erm = build(data, options)
    first = warm_up(erm)
    rows = [row("erm, adam", 1, {}, erm, data, options)]
    for name in options.optimizers:
        passes = OPTIMIZERS[name].passes
        rows.append(row(f"erm, {name}", passes, {"optimizer": name}, erm, data, options))
    rows += [row(f"{name}, adam", 0, {"method": name}, erm, data, options) for name in options.methods]
    images = 3 * options.batch
    facts = {
        "setting": f"{options.backbone}, {images} images of {options.image_size} px, batch norm frozen, "
        f"{erm.machine.precision}, images on the device",
        "repeats": f"{options.rounds} rounds of {options.burst} steps after {WARM_UP} of warm-up",
        "start": f"the first {WARM_UP} steps of the process took {first:.1f} s; those in the table come after them",
    }
    header = ["method, optimizer", "ms per step", "in ERM steps", "bare", "first steps, s", "captured", "bar"]
    publish([*heading("Steps on a GPU", options.device, facts), *table(header, rows)], options.out)


def row(
    name: str, passes: int, values: dict[str, Any], erm: Run, data: Noise, options: argparse.Namespace
) -> list[str]:
    """Return a contender's row of the table."""
    try:
        run = build(data, options, **values)
        first = warm_up(run)
        whole, bare = rounds(run, erm, options, still=False), rounds(run, erm, options, still=True)
    except Exception as error:  # the other contenders still run
        return [name, "", "", "", "", "", f"failed: {type(error).__name__}: {str(error).splitlines()[0]}"]
    ratio, bar = statistics.median(r for _, r in whole), 1.05 * passes if passes else 1.3
    apart = MORE.get(values.get("method", ""), "")
    verdict = apart or ("within" if ratio <= bar else "ABOVE") + f" {bar:.2f}"
    cells = [f"{1000 * statistics.median(s for s, _ in whole):.1f}", f"{ratio:.2f}"]
    cells += [f"{statistics.median(r for _, r in bare):.2f}", f"{first:.1f}", HOW[run.captures.what], verdict]
    del run
    gc.collect()
    print(name, *cells, flush=True)
    return [name, *cells]


def build(data: Noise, options: argparse.Namespace, **values: Any) -> Run:
    chosen = {"data": "noise", "target": "a", "backbone": options.backbone, "image_size": options.image_size}
    chosen |= {"batch": options.batch, "freeze_bn": True, "pretrained": False, "lr": 1e-6, "steps": STEPS}
    return Run(Recipe(**chosen | values), find_machine(options.device), data)


def warm_up(run: Run) -> float:
    """Return the seconds of the first steps."""
    start = time.perf_counter()
    for step in range(FIRST, FIRST + WARM_UP):
        train_step(run, step)
    synchronize(run)
    return time.perf_counter() - start


def rounds(run: Run, erm: Run, options: argparse.Namespace, *, still: bool) -> list[tuple[float, float]]:
    """Return seconds per step and the ratio to ERM, for each round."""
    feeds = run.feed, erm.feed
    if still:
        run.feed, erm.feed = Still(run.feed), Still(erm.feed)  # type: ignore[assignment]
    taken = []
    for _ in range(options.rounds):
        before, own, after = (seconds(each, options.burst) for each in (erm, run, erm))
        taken.append((own, 2 * own / (before + after)))
    run.feed, erm.feed = feeds
    return taken


def seconds(run: Run, steps: int) -> float:
    """Return seconds per step; twelve steps are whole cycles of networks and discriminators."""
    synchronize(run)
    start = time.perf_counter()
    for step in range(FIRST + WARM_UP, FIRST + WARM_UP + steps):
        train_step(run, step)
    synchronize(run)
    return (time.perf_counter() - start) / steps


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
