"""Measure a step of each method, and of MSAM, relative to a step of ERM under Adam on the same batch.

    python benchmarks/method_cost.py --out benchmarks/results/method_cost.md
    python benchmarks/method_cost.py --device cuda --backbone resnet50 --image-size 224

Steps are those of the training loop, on one prepared batch, in the order ERM, a method, ERM. The method's ratio in a
round is its time over the mean of the two: processor time on a CPU, which other programs change little. Steps are from
the middle of a run, where penalties are annealed and all stages train. A burst of six has whole cycles of DANN, CDANN
and ADRMX, whose networks train in every second or third step. The limit is 1.1 for a method of one pass, and 1.05 for
MSAM; the table names why other methods take more.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

from end_to_end import Noise, Still, synchronize
from machine import heading, publish, table
from mecam.methods import METHODS
from mecam.optim import OPTIMIZERS
from mecam.recipe import Recipe
from mecam.training.machine import find_machine
from mecam.training.run import Run
from mecam.training.step import train_step

STEPS = 10**6  # of the run
FIRST = STEPS // 2
BAR = 1.1
BARS = {"msam": 1.05}
MORE = {
    "arm": "a context network on every image",
    "miro": "a second forward through the frozen network",
    "mldg": "gradients at two points for each pair of domains, and a plain pass",
    "fish": "a step on one domain after another, and a plain pass",
    "mdsdi": "two featurizers, and inner steps",
    "andmask": "a backward for each domain",
    "sandmask": "a backward for each domain",
    "iga": "second derivatives of the network",
    "transfer": "a backward for each of two gradients",
    "selfreg": "a projector on the features",
    "adrmx": "two featurizers",
}


def main() -> None:
    options = parse()
    data = Noise(7 * 40, options.image_size)
    erm = build("erm", data, options)
    rows = []
    for name in options.methods:
        run = build(name, data, options)
        for step in (FIRST, FIRST + 1):
            train_step(run, step), train_step(erm, step)
        ratios = []
        for _ in range(options.rounds):
            before, taken, after = (seconds(each, options) for each in (erm, run, erm))
            ratios.append(2 * taken / (before + after))
        ratios.sort()
        middle = statistics.median(ratios)
        verdict = "within the bar" if middle <= BARS.get(name, BAR) else MORE.get(name, "OVER THE BAR")
        quartiles = f"{ratios[len(ratios) // 4]:.2f} to {ratios[-1 - len(ratios) // 4]:.2f}"
        rows.append([name, f"{middle:.2f}", quartiles, verdict])
    images = options.batch * 3
    facts = {
        "setting": f"{options.backbone}, {images} images of {options.image_size} px, Adam, the same batch for all, "
        f"batch norm {'frozen' if options.frozen_bn else 'live'}",
        "repeats": f"{options.rounds} rounds of {options.burst} steps",
    }
    header = ["method or optimizer", "ratio to ERM", "quartiles", ""]
    publish([*heading("Cost of a step, in ERM steps", options.device, facts), *table(header, rows)], options.out)


def build(name: str, data: Noise, options: argparse.Namespace) -> Run:
    values = {"backbone": options.backbone, "image_size": options.image_size, "batch": options.batch}
    kind = "method" if name in METHODS else "optimizer"
    values |= {"freeze_bn": True} if options.frozen_bn else {}
    recipe = Recipe(**{"data": "noise", "target": "a", kind: name, "steps": STEPS, **values})
    run = Run(recipe, find_machine(options.device), data)
    run.feed = Still(run.feed)  # type: ignore[assignment]
    return run


def seconds(run: Run, options: argparse.Namespace) -> float:
    """Return seconds per step."""
    clock = time.process_time if options.device == "cpu" else time.perf_counter
    synchronize(run)
    start = clock()
    for step in range(FIRST, FIRST + options.burst):
        train_step(run, step)
    synchronize(run)
    return (clock() - start) / options.burst


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    everything = [*(name for name in METHODS if name != "erm"), "msam"]
    parser.add_argument("--methods", nargs="+", choices=[*METHODS, *OPTIMIZERS], default=everything)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--frozen-bn", action="store_true", help="freeze batch norm, as with pretrained backbones")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--burst", type=int, default=6)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
