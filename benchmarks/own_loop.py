"""Measure steps of a loop of your own: a ResNet-50 of torchvision with frozen batch norm, eager, captured and folded.

python benchmarks/own_loop.py --device cuda
python benchmarks/own_loop.py --device cpu --network resnet18 --size 64 --batch 8
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import mecam
from machine import heading, publish, table
from mecam.models import fold_frozen
from mecam.optim import SAM, MeCAM, capture
from mecam.virtual import MixStyle

WAYS = {  # folded, compiled, captured
    "eager": (False, False, False),
    "captured": (False, False, True),
    "folded, captured": (True, False, True),
    "compiled, captured": (False, True, True),
}
OPTIMIZERS = {
    "Adam": lambda p, _: torch.optim.Adam(p, lr=1e-6, fused=True),
    "SAM": lambda p, m: SAM(p, torch.optim.Adam, lr=1e-6, fused=True, model=m, nonfinite="skip"),
    "MeCAM": lambda p, m: MeCAM(
        *(p, torch.optim.Adam),
        lr=1e-6,
        fused=True,
        model=m,
        nonfinite="skip",
        virtual_domain=MixStyle().attach(m, ["layer1", "layer2", "layer3"]),
    ),
}


def main() -> None:
    options = parse()
    times = {way: [milliseconds(way, name, options) for name in OPTIMIZERS] for way in options.ways}
    rows = [[way, *(f"{ms:.1f} ({ms / row[0]:.2f})" for ms in row)] for way, row in times.items()]
    setting = f"{options.network}, {options.batch} images of {options.size} pixels, bf16, channels last"
    facts = {"setting": setting, "cells": f"median of {options.steps} steps in ms, and in Adam steps of the same row"}
    publish(
        [*heading("Steps of a loop of your own", options.device, facts), *table(["way", *OPTIMIZERS], rows)],
        options.out,
    )


def milliseconds(way: str, optimizer: str, options: argparse.Namespace) -> float:
    folded, compiled, captured = WAYS[way]
    step = make_step(optimizer, options, folded=folded, compiled=compiled, captured=captured)
    images = torch.randn(options.batch, 3, options.size, options.size, device=options.device)
    labels = torch.randint(7, (options.batch,), device=options.device)
    taken = []
    for _ in range(options.steps + 5):
        wait(options.device)
        start = time.perf_counter()
        step(images.contiguous(memory_format=torch.channels_last), labels)
        wait(options.device)
        taken.append(1000 * (time.perf_counter() - start))
    return statistics.median(itertools.islice(taken, 5, None))


def make_step(
    optimizer: str, options: argparse.Namespace, *, folded: bool, compiled: bool, captured: bool
) -> Callable[[Tensor, Tensor], object]:
    mecam.repair_torchvision()
    import torchvision

    torch.manual_seed(0)
    model: nn.Module = getattr(torchvision.models, options.network)(num_classes=7)
    model = model.to(options.device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    built = OPTIMIZERS[optimizer](model.parameters(), model)
    if folded:
        fold_frozen(model)
    forward = torch.compile(model) if compiled else model

    def loss_fn(images: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(images.device.type, torch.bfloat16):
            return nn.functional.cross_entropy(forward(images), labels)

    def eager(images: Tensor, labels: Tensor) -> object:
        def closure() -> Tensor:
            built.zero_grad()
            loss = loss_fn(images, labels)
            loss.backward()
            return loss

        return built.step(closure)

    return capture(built, loss_fn) if captured else eager


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
