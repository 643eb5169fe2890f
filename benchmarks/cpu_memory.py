"""Measure a training step on a CPU with and without keeping freed memory (mecam/training/memory.py).

    python benchmarks/cpu_memory.py --out benchmarks/results/cpu_memory.md

Each measurement is a process of its own; the two ways alternate. Ratios are medians over rounds.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from machine import heading, publish, table
from mecam.models import create
from mecam.training.memory import keep_freed_memory

WAYS = ("glibc's defaults", "freed memory kept")


def main() -> None:
    options = parse()
    if options.child is not None:
        print(json.dumps(measure(options)))
        return
    results: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way in WAYS:
            command = [sys.executable, __file__, *sys.argv[1:], "--child", way]
            results[way].append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    pairs = zip(*(results[way] for way in WAYS), strict=True)
    ratio = statistics.median(kept["seconds"] / plain["seconds"] for plain, kept in pairs)
    names = ("seconds", "processor", "system", "faults", "peak")
    rows = [
        [way, *(f"{statistics.median(run[name] for run in runs):,.2f}" for name in names)]
        for way, runs in results.items()
    ]
    facts = {
        "setting": f"{options.backbone}, Adam, {options.batch} images of 224 px, {options.threads} threads",
        "repeats": f"{options.rounds} processes per way, each {options.steps} steps after 1 of warm-up",
    }
    columns = ["way", "s per step", "of it processor time", "of it in the system", "million page faults", "peak GiB"]
    lines = [*heading("Freed memory on a CPU", "cpu", facts), *table(columns, rows)]
    publish([*lines, "", f"Time with freed memory kept, relative to without: {ratio:.2f}."], options.out)


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Return the time, page faults and peak memory of a step."""
    torch.set_num_threads(options.threads)
    if options.child == WAYS[1] and not keep_freed_memory():
        raise SystemExit("the C library is not glibc")
    torch.manual_seed(0)
    network = create(options.backbone, classes=7, pretrained=False).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
    images = torch.randn(options.batch, 3, 224, 224).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(7, (options.batch,))

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(network(images), labels).backward()
        optimizer.step()

    step()
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for _ in range(options.steps):
        step()
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    system = after.ru_stime - before.ru_stime
    return {
        "seconds": seconds / options.steps,
        "processor": (after.ru_utime - before.ru_utime + system) / options.steps,
        "system": system / options.steps,
        "faults": (after.ru_minflt - before.ru_minflt) / options.steps / 1e6,
        "peak": after.ru_maxrss / 2**20,
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="lite0")
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
