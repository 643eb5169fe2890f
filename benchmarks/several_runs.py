"""Measure the images per second of several runs on one GPU, one process per run.

    python benchmarks/several_runs.py --backbone resnet50 --optimizer mecam

All processes warm up, wait for each other, and then take the same number of steps. The rate is the number of all images
over the time until the last process ends.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

from end_to_end import Noise, synchronize
from machine import heading, publish, table
from mecam.recipe import Recipe
from mecam.training.machine import find_machine
from mecam.training.run import Run
from mecam.training.step import train_step

WARM_UP = 6


def main() -> None:
    options = parse()
    rows = []
    alone = 0.0
    for count in options.processes:
        rate, memory = together(count, options)
        alone = alone or rate
        rows.append([str(count), f"{rate:.0f}", f"{rate / alone:.2f}", f"{memory:.1f}"])
        print(rows[-1], flush=True)
    facts = {
        "setting": f"{options.backbone}, {options.optimizer}, 3 x {options.batch} images of {options.image_size} px, "
        "batch norm frozen, images on the device",
        "repeats": f"{options.steps} steps each, once, after {WARM_UP} of warm-up",
    }
    header = ["runs at once", "images/s of all", "to one run", "GiB per run"]
    publish([*heading("Several runs on one GPU", options.device, facts), *table(header, rows)], options.out)


def together(count: int, options: argparse.Namespace) -> tuple[float, float]:
    """Return the images per second of all runs, and the peak memory of one."""
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(count + 1), context.SimpleQueue()
    processes = [context.Process(target=work, args=(barrier, answers, options)) for _ in range(count)]
    for process in processes:
        process.start()
    barrier.wait()
    start = time.perf_counter()
    barrier.wait()
    seconds = time.perf_counter() - start
    memory = max(answers.get() for _ in processes)
    for process in processes:
        process.join()
    return count * options.steps * 3 * options.batch / seconds, memory


def work(barrier: Barrier, answers: multiprocessing.SimpleQueue[float], options: argparse.Namespace) -> None:
    values = {"data": "noise", "target": "a", "backbone": options.backbone, "image_size": options.image_size}
    values |= {
        "batch": options.batch,
        "freeze_bn": True,
        "pretrained": False,
        "lr": 1e-6,
        "optimizer": options.optimizer,
    }
    run = Run(Recipe(**values), find_machine(options.device), Noise(options.images, options.stored))
    for step in range(WARM_UP):
        train_step(run, step)
    synchronize(run)
    barrier.wait()
    for step in range(WARM_UP, WARM_UP + options.steps):
        train_step(run, step)
    synchronize(run)
    barrier.wait()
    answers.put(_memory(run))


def _memory(run: Run) -> float:
    """Return the GiB that this process uses on the device, without the CUDA context."""
    import torch

    return torch.cuda.memory_reserved() / 2**30 if run.machine.device.type == "cuda" else 0.0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--optimizer", default="mecam")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--stored", type=int, default=227)
    parser.add_argument("--images", type=int, default=1600)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
