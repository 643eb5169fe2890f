"""Measure the images per second of several runs at once on one GPU, one process per run.

    python benchmarks/several_runs.py
    python benchmarks/several_runs.py --cases resnet50:224 --counts 1 2 4 --optimizer adam

For each case, every process builds a run and warms it up. Then one, two, ... of them take steps at the same time for a
few seconds, and the others wait.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import multiprocessing
import os
import time
from collections.abc import Iterator
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import NamedTuple

import torch

from end_to_end import Noise, synchronize
from machine import heading, publish, table
from mecam.recipe import Recipe
from mecam.training.machine import find_machine
from mecam.training.run import Run
from mecam.training.step import train_step

WARM_UP = 6  # steps
BURST = 5  # steps between two looks at the clock
PATIENCE = 300  # seconds to wait for another process


class Case(NamedTuple):
    backbone: str
    size: int

    @classmethod
    def read(cls, text: str) -> Case:
        backbone, _, size = text.rpartition(":")
        return cls(backbone, int(size))


class Answer(NamedTuple):
    """What one process found."""

    rate: float = 0.0  # images per second
    memory: float = 0.0  # GiB
    error: str = ""


def main() -> None:
    options = parse()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in `mecam bench`
    context, most = multiprocessing.get_context("spawn"), max(options.counts)
    barrier, answers = context.Barrier(most, timeout=PATIENCE), context.Queue()
    processes = [
        context.Process(target=work, args=(rank, barrier, answers, options), daemon=True) for rank in range(most)
    ]
    for process in processes:
        process.start()
    rows = []
    for case in options.cases:
        alone = 0.0
        for count in options.counts:
            found = [answer(answers) for _ in range(count)]
            rate = sum(each.rate for each in found)
            alone = alone or rate
            memory = max(each.memory for each in found)
            rows.append([f"{case.backbone}, {case.size} px", str(count), f"{rate:.0f}", f"{rate / alone:.2f}"])
            rows[-1].append(f"{memory:.1f}")
            print(rows[-1], flush=True)
    for process in processes:
        process.join()
    facts = {
        "setting": f"{options.optimizer}, 3 x {options.batch} images, batch norm frozen, images on the device",
        "repeats": f"{options.seconds:g} s, once, after {WARM_UP} steps of warm-up",
    }
    header = ["case", "runs at once", "images/s of all", f"to {options.counts[0]} at once", "GiB per run"]
    publish([*heading("Several runs on one GPU", options.device, facts), *table(header, rows)], options.out)


def answer(answers: Queue[Answer]) -> Answer:
    found = answers.get(timeout=2 * PATIENCE)
    if found.error:
        raise SystemExit(found.error)
    return found


def work(rank: int, barrier: Barrier, answers: Queue[Answer], options: argparse.Namespace) -> None:
    """Take steps whenever more than `rank` runs are counted: the main function of a process."""
    for case in options.cases:
        try:
            run, steps = build(case, options), itertools.count()
            take(run, steps, WARM_UP)
            for count in options.counts:
                torch.set_num_threads(max(1, (os.cpu_count() or 1) // count))
                barrier.wait()
                if rank < count:
                    answers.put(Answer(images_per_second(run, steps, options), memory(run)))
                barrier.wait()
        except Exception as error:
            barrier.abort()  # the others need not wait
            answers.put(Answer(error=f"{case.backbone}:{case.size}: {type(error).__name__}: {error}"))
            raise
        del run
        gc.collect()
        torch.cuda.empty_cache()


def build(case: Case, options: argparse.Namespace) -> Run:
    values = {"data": "noise", "target": "a", "backbone": case.backbone, "image_size": case.size, "steps": 1_000_000}
    values |= {"batch": options.batch, "freeze_bn": True, "pretrained": False, "lr": 1e-6}
    values |= {"optimizer": options.optimizer}
    stored = case.size * 227 // 224  # pixels
    return Run(Recipe(**values), find_machine(options.device), Noise(options.images, stored))


def images_per_second(run: Run, steps: Iterator[int], options: argparse.Namespace) -> float:
    start, bursts = time.perf_counter(), 0
    while (seconds := time.perf_counter() - start) < options.seconds or not bursts:
        take(run, steps, BURST)
        bursts += 1
    return bursts * BURST * 3 * options.batch / seconds


def take(run: Run, steps: Iterator[int], number: int) -> None:
    for step in itertools.islice(steps, number):
        train_step(run, step)
    synchronize(run)


def memory(run: Run) -> float:
    """Return the GiB that this process uses on the device, without the CUDA context."""
    return torch.cuda.memory_reserved() / 2**30 if run.machine.device.type == "cuda" else 0.0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cases = [Case("resnet8", 32), Case("resnet18", 64), Case("lite0", 224), Case("resnet50", 224)]
    parser.add_argument("--cases", type=Case.read, nargs="+", default=cases, metavar="BACKBONE:SIZE")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--optimizer", default="mecam")
    parser.add_argument("--images", type=int, default=1600)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
