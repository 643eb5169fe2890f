"""Measure steps of a loop of your own: a ResNet-50 of torchvision with frozen batch norm, eager, compiled and captured.

    python benchmarks/own_loop.py --device cuda
    python benchmarks/own_loop.py --device cpu --network resnet18 --size 64 --batch 8

"SAM, plain loop" is the two-step SAM that most projects copy (davda54/sam): it adds the perturbation and subtracts it.
It has no step that can be captured. "pytorch_optimizer.SAM" appears where that package is installed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import mecam
from machine import heading, publish, table
from mecam.models import fold_frozen
from mecam.optim import SAM, MeCAM, capture
from mecam.virtual import MixStyle


class Way(NamedTuple):
    """How a step runs."""

    folded: bool = False
    compiled: str = ""  # the mode of torch.compile
    captured: bool = False


WAYS = {
    "eager": Way(),
    "captured": Way(captured=True),
    "folded, captured": Way(folded=True, captured=True),
    "compiled": Way(compiled="default"),
    "compiled, reduce-overhead": Way(compiled="reduce-overhead"),
    "compiled, captured": Way(compiled="default", captured=True),
}


class PlainSAM(torch.optim.Adam):
    """Adam at the gradient of the perturbed weights."""

    def step(self, closure: Any = None) -> Any:
        loss = closure()
        weights = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in weights]).norm() + 1e-12
        moved = [p.grad * (0.05 / norm) for p in weights]
        with torch.no_grad():
            for p, e in zip(weights, moved, strict=True):
                p.add_(e)
        closure()
        with torch.no_grad():
            for p, e in zip(weights, moved, strict=True):
                p.sub_(e)
        super().step()
        return loss


OPTIMIZERS: dict[str, Callable[[Any, nn.Module], torch.optim.Optimizer]] = {
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
    "SAM, plain loop": lambda p, _: PlainSAM(p, lr=1e-6, fused=True),
}
PEERS = ["SAM, plain loop"]
if find_spec("pytorch_optimizer"):
    import pytorch_optimizer

    PEERS += ["pytorch_optimizer.SAM"]
    OPTIMIZERS[PEERS[1]] = lambda p, _: pytorch_optimizer.SAM(p, torch.optim.Adam, lr=1e-6, fused=True)


def main() -> None:
    options = parse()
    failed: list[str] = []
    rows = []
    for way in options.ways:
        times = [attempt(way, name, options, failed) for name in OPTIMIZERS]
        rows.append([way, *("-" if ms is None else f"{ms:.1f} ({ms / (times[0] or ms):.2f})" for ms in times)])
    facts = {
        "setting": f"{options.network}, {options.batch} images of {options.size} pixels, bf16, channels last",
        "cells": f"median of {options.steps} steps in ms, and in Adam steps of the same row",
    }
    lines = [*heading("Steps of a loop of your own", options.device, facts), *table(["way", *OPTIMIZERS], rows)]
    publish([*lines, *(["", *failed] if failed else [])], options.out)


def attempt(way: str, optimizer: str, options: argparse.Namespace, failed: list[str]) -> float | None:
    """Return milliseconds per step; None for what cannot run this way."""
    if WAYS[way].captured and optimizer in PEERS:
        return None
    torch._dynamo.reset()
    try:
        ms = milliseconds(WAYS[way], optimizer, options)
    except Exception as error:  # the rest of the table is worth having
        reason = (str(error).strip().splitlines() or [""])[0]
        failed.append(f"{way}, {optimizer} failed: {type(error).__name__}: {reason}")
        ms = None
    print(f"{way}, {optimizer}: {ms}", file=sys.stderr)
    return ms


def milliseconds(way: Way, optimizer: str, options: argparse.Namespace) -> float:
    step = make_step(way, optimizer, options)
    images = torch.randn(options.batch, 3, options.size, options.size, device=options.device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(7, (options.batch,), device=options.device)
    taken = []
    for _ in range(options.steps + 5):
        wait(options.device)
        start = time.perf_counter()
        step(images, labels)
        wait(options.device)
        taken.append(1000 * (time.perf_counter() - start))
    return statistics.median(taken[5:])


def make_step(way: Way, optimizer: str, options: argparse.Namespace) -> Callable[[Tensor, Tensor], object]:
    mecam.repair_torchvision()
    import torchvision

    torch.manual_seed(0)
    model: nn.Module = getattr(torchvision.models, options.network)(num_classes=7)
    model = model.to(options.device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    built = OPTIMIZERS[optimizer](model.parameters(), model)
    if way.folded:
        fold_frozen(model)
    forward = torch.compile(model, mode=way.compiled) if way.compiled else model

    def loss_fn(images: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(images.device.type, torch.bfloat16):
            return nn.functional.cross_entropy(forward(images), labels)

    def eager(images: Tensor, labels: Tensor) -> object:
        def closure() -> Tensor:
            built.zero_grad()
            if way.compiled == "reduce-overhead":
                torch.compiler.cudagraph_mark_step_begin()
            loss = loss_fn(images, labels)
            loss.backward()
            return loss

        return built.step(closure)

    return capture(built, loss_fn) if way.captured else eager


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
