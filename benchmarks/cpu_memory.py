"""Measure what makes a training step on a CPU fast: freed memory that is kept, and frozen batch norm that is folded.

    python benchmarks/cpu_memory.py --out benchmarks/results/cpu_memory.md

Each measurement is a process of its own; the ways alternate. Ratios are medians over rounds, with their range. "Freed
memory kept" is mecam/training/memory.py, "folded" is mecam.models.fold_frozen, "compiled" is torch.compile.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from machine import heading, publish, table
from mecam.models import create, fold_frozen
from mecam.training.memory import keep_freed_memory

DEFAULTS = "glibc's defaults"
WAYS = (DEFAULTS, "freed memory kept", "kept and folded", "kept and compiled", "kept, folded, bf16")


def main() -> None:
    options = parse()
    if options.child is not None:
        print(json.dumps(measure(options)))
        return
    ways = [DEFAULTS, *(way for way in options.ways if way != DEFAULTS)]
    results: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}  # a thread that waits takes no processor time
    for _ in range(options.rounds):
        for way in ways:
            command = [sys.executable, __file__, *sys.argv[1:], "--child", way]
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
            results[way].append(json.loads(done.stdout))
    facts = {
        "setting": f"{options.backbone}, frozen batch norm, Adam, {options.batch} images of 224 px, "
        f"{options.threads} threads",
        "repeats": f"{options.rounds} processes per way, each {options.steps} steps after 2 of warm-up",
        "to the defaults": "median and range over rounds of the ratio of processor times",
    }
    columns = ["way", "s per step", "processor s", "of it in the system", "million page faults", "peak GiB"]
    rows = [[way, *summary(results[way]), *ratios(results[DEFAULTS], results[way])] for way in ways]
    header = [*columns, "to the defaults", "times as many images"]
    publish([*heading("A step of a frozen network on a CPU", "cpu", facts), *table(header, rows)], options.out)


def summary(runs: list[dict[str, float]]) -> list[str]:
    names = ("seconds", "processor", "system", "faults", "peak")
    return [f"{statistics.median(run[name] for run in runs):,.2f}" for name in names]


def ratios(plain: list[dict[str, float]], runs: list[dict[str, float]]) -> list[str]:
    each = [run["processor"] / of["processor"] for run, of in zip(runs, plain, strict=True)]
    middle = statistics.median(each)
    return [f"{middle:.2f} ({min(each):.2f} to {max(each):.2f})", f"{1 / middle:.2f}"]


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Return the time, page faults and peak memory of a step."""
    torch.set_num_threads(options.threads)
    if options.child != DEFAULTS and not keep_freed_memory():
        raise SystemExit("the C library is not glibc")
    torch.manual_seed(0)
    network = create(options.backbone, classes=7, pretrained=False, freeze_bn=True).train()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if "folded" in options.child:
        fold_frozen(network)
    if "compiled" in options.child:
        network.compile()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
    images = torch.randn(options.batch, 3, 224, 224).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(7, (options.batch,))

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in options.child):
            loss = cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()

    step()
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
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
