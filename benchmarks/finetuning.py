"""Compare ways to fine-tune a large backbone: memory and time of a training step beside those of all weights.

    python benchmarks/finetuning.py --out benchmarks/results/finetuning.md
    python benchmarks/finetuning.py --backbone timm/vit_base_patch16_224 --batch 32 --device cuda

Each measurement is a process of its own; the ways alternate. Weights are random, which costs the same. Memory is the
peak of the process on a CPU, less that of a process that has built the run, and the peak of torch's allocator on a GPU.
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
from typing import Any

import torch

from machine import Others, heading, publish, table
from mecam.data.shapes import shapes
from mecam.recipe import Recipe
from mecam.training.machine import find_machine
from mecam.training.run import Run
from mecam.training.step import train_step

WAYS: dict[str, dict[str, Any]] = {
    "all": {},
    "all, checkpointing": {"checkpointing": True},
    "all, accumulate=4": {"accumulate": 4},
    "all, checkpointing, accumulate=4": {"checkpointing": True, "accumulate": 4},
    "lora": {"trainable": "lora"},
    "lora, checkpointing": {"trainable": "lora", "checkpointing": True},
    "norms": {"trainable": "norms"},
    "last": {"trainable": "last"},
}


def main() -> None:
    options = parse()
    if options.child is not None:
        print(json.dumps(measure(options)))
        return
    results: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    others = Others()
    for _ in range(options.rounds):
        for way in WAYS:
            command = [sys.executable, __file__, *sys.argv[1:], "--child", way]
            results[way].append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    middle = {
        way: {name: statistics.median(run[name] for run in runs) for name in runs[0]} for way, runs in results.items()
    }
    whole = middle["all"]
    rows = [
        [
            way,
            f"{own['trained']:,.0f}",
            f"{own['memory']:,.0f}",
            f"{own['memory'] / whole['memory']:.2f}",
            f"{own['seconds']:.2f}",
            f"{own['seconds'] / whole['seconds']:.2f}",
        ]
        for way, own in middle.items()
    ]
    size = "its own size" if options.image_size is None else f"{options.image_size} px"
    facts = {
        "setting": f"{options.backbone}, {options.optimizer}, 3 x {options.batch} images of {size}",
        "repeats": f"medians of {options.rounds} processes per way, each {options.steps} steps after 1 of warm-up",
        "load": f"other programs used {100 * others.share():.0f} % of the processors; time is processor time on a CPU",
    }
    columns = ["way", "weights trained", "MiB", "of all", "s per step", "of all"]
    lines = [*heading("Fine-tuning", options.device, facts), *table(columns, rows)]
    publish([*lines, "", "Not run: ViT-B/16 on a GPU (the second command of the script)."], options.out)


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Return the time and memory of a step, and the number of weights that are trained."""
    sizes = {"image_size": options.image_size, "batch": options.batch, "steps": 1000}
    recipe = Recipe(
        target="sketch",
        backbone=options.backbone,
        pretrained=False,
        optimizer=options.optimizer,
        **sizes,
        **WAYS[options.child],
    )
    machine = find_machine(options.device)
    run = Run(recipe, machine, shapes(per_class=8))
    on_gpu = machine.device.type == "cuda"
    clock = time.perf_counter if on_gpu else time.process_time
    before = _peak(on_gpu)
    for step in range(options.steps + 1):
        if step == 1:
            start = clock()
        loss = train_step(run, step)
        if loss is not None:
            float(loss)
    seconds = (clock() - start) / options.steps
    trained = sum(parameter.numel() for parameter in run.parameters if parameter.requires_grad)
    return {"seconds": seconds, "memory": _peak(on_gpu) - (0 if on_gpu else before), "trained": trained}


def _peak(on_gpu: bool) -> float:
    """Return the peak memory so far in MiB."""
    if on_gpu:
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="timm/vit_tiny_patch16_224")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--optimizer", default="mecam")
    parser.add_argument("--batch", type=int, default=8, help="images per domain")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
