"""Measure steps of a loop of your own: a ResNet-50 of torchvision with frozen batch norm, eager, compiled and captured.

    python benchmarks/own_loop.py --device cuda
    python benchmarks/own_loop.py --device cpu --network resnet18 --size 64 --batch 8

"SAM, plain loop" is the two-step SAM that most projects copy (davda54/sam): it adds the perturbation and subtracts it.
"SAGM, plain loop" is the step of the public SAGM code, written the same way. Neither has a step that can be captured.
"pytorch_optimizer.SAM" appears where that package is installed. "2 passes" and "3 passes" update nothing.
"MeCAM, in turn" is captured without running its perturbed passes side by side. The columns of a row take turns, except
with reduce-overhead. `--work` adds a table of how long a step keeps a GPU busy, with how many kernels and in how much
memory. For the rest of the step the GPU is idle.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import mecam
from machine import heading, parse, publish, table
from mecam.models import fold_frozen
from mecam.optim import SAM, MeCAM, capture
from mecam.virtual import MixStyle


class Way(NamedTuple):
    """How a step runs."""

    folded: bool = False
    compiled: str = ""  # the mode of torch.compile
    captured: bool = False


WARM_UP = 5  # steps
WAYS = {
    "eager": Way(),
    "captured": Way(captured=True),
    "folded, captured": Way(folded=True, captured=True),
    "compiled": Way(compiled="default"),
    "compiled, reduce-overhead": Way(compiled="reduce-overhead"),
    "compiled, captured": Way(compiled="default", captured=True),
}


class Passes:
    """Passes without an optimizer."""

    def __init__(self, count: int, model: nn.Module) -> None:
        self.count, self.zero_grad = count, model.zero_grad

    def step(self, closure: Any) -> Any:
        losses = [closure() for _ in range(self.count)]
        return losses[0]


class PlainSAM(torch.optim.Adam):
    """Adam at the gradient of the perturbed weights."""

    def step(self, closure: Any = None) -> Any:
        loss = closure()
        weights = self.weights()
        moved = perturb(weights, 0.05 / norm(weights))
        closure()
        restore(weights, moved)
        super().step()
        return loss

    def weights(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"] if p.grad is not None]


class PlainSAGM(PlainSAM):
    """Adam at the mean of the gradients at the weights and at the perturbed weights."""

    def step(self, closure: Any = None) -> Any:
        loss = closure()
        weights = self.weights()
        former = [p.grad.clone() for p in weights]
        moved = perturb(weights, 0.05 / norm(weights) - 1e-3)
        closure()
        restore(weights, moved)
        for p, g in zip(weights, former, strict=True):
            p.grad.add_(0.5 * g - 0.5 * p.grad)
        torch.optim.Adam.step(self)
        return loss


def norm(weights: list[Tensor]) -> Tensor:
    return torch.stack([p.grad.norm() for p in weights]).norm() + 1e-12


@torch.no_grad()
def perturb(weights: list[Tensor], scale: Tensor) -> list[Tensor]:
    moved = [p.grad * scale for p in weights]
    for p, e in zip(weights, moved, strict=True):
        p.add_(e)
    return moved


@torch.no_grad()
def restore(weights: list[Tensor], moved: list[Tensor]) -> None:
    for p, e in zip(weights, moved, strict=True):
        p.sub_(e)


def mecam_on(parameters: Any, model: nn.Module, *, side_by_side: bool) -> MeCAM:
    style = MixStyle().attach(model, ["layer1", "layer2", "layer3"])
    options: dict[str, Any] = {"lr": 1e-6, "fused": True, "model": model, "nonfinite": "skip"}
    optimizer = MeCAM(parameters, torch.optim.Adam, virtual_domain=style, **options)
    optimizer.side_by_side = side_by_side
    return optimizer


OPTIMIZERS: dict[str, Callable[[Any, nn.Module], Any]] = {
    "Adam": lambda p, _: torch.optim.Adam(p, lr=1e-6, fused=True),
    "SAM": lambda p, m: SAM(p, torch.optim.Adam, lr=1e-6, fused=True, model=m, nonfinite="skip"),
    "MeCAM": partial(mecam_on, side_by_side=True),
    "MeCAM, in turn": partial(mecam_on, side_by_side=False),
    "2 passes": lambda _, m: Passes(2, m),
    "3 passes": lambda _, m: Passes(3, m),
    "SAM, plain loop": lambda p, _: PlainSAM(p, lr=1e-6, fused=True),
    "SAGM, plain loop": lambda p, _: PlainSAGM(p, lr=1e-6, fused=True),
}
CAPTURED = ["Adam", "SAM", "MeCAM", "MeCAM, in turn"]
PEERS = ["SAM, plain loop", "SAGM, plain loop"]
if find_spec("pytorch_optimizer"):
    import pytorch_optimizer

    class TheirSAM(pytorch_optimizer.SAM):
        """Its step starts after the first pass, which its documentation leaves to the caller."""

        def step(self, closure: Any = None) -> Any:
            loss = closure()
            super().step(closure)
            return loss

    PEERS += ["pytorch_optimizer.SAM"]
    OPTIMIZERS[PEERS[-1]] = lambda p, _: TheirSAM(p, torch.optim.Adam, lr=1e-6, fused=True)


def main() -> None:
    numbers = {"batch": 96, "size": 224, "steps": 30}
    options = parse(__doc__, device="cuda", network="resnet50", **numbers, ways=list(WAYS), work=False)
    torch._dynamo.config.skip_nnmodule_hook_guards = False  # MixStyle is a hook: MeCAM's network needs code of its own
    failed: list[str] = []
    times = [measure(way, milliseconds, options, failed) for way in options.ways]
    facts = {
        "setting": f"{options.network}, {options.batch} images of {options.size} pixels, bf16, channels last",
        "cells": f"median of {options.steps} steps in ms, and in Adam steps of the same row",
    }
    lines = heading("Steps of a loop of your own", options.device, facts)
    lines += table(["way", *OPTIMIZERS], [time_row(way, row) for way, row in zip(options.ways, times, strict=True)])
    if options.work:  # after all times: a profiler may slow what follows it
        work = [measure(way, gpu_work, options, failed, alone=True) for way in options.ways]
        lines += ["", "GPU work per step: ms busy, kernels; GiB reserved"]
        lines += table(["way", *OPTIMIZERS], [work_row(way, row) for way, row in zip(options.ways, work, strict=True)])
    publish([*lines, *(["", *failed] if failed else [])], options.out)


def time_row(way: str, times: dict[str, float]) -> list[str]:
    plain = times.get("Adam")
    cells = {name: f"{ms:.1f}" + (f" ({ms / plain:.2f})" if plain else "") for name, ms in times.items()}
    return [way, *(cells.get(name, "-") for name in OPTIMIZERS)]


def work_row(way: str, work: dict[str, tuple[float, int, float]]) -> list[str]:
    cells = {name: f"{ms:.1f}, {kernels}; {memory:.1f}" for name, (ms, kernels, memory) in work.items()}
    return [way, *(cells.get(name, "-") for name in OPTIMIZERS)]


Steps = dict[str, Callable[[], object]]


def measure(
    way: str,
    look: Callable[[Steps, argparse.Namespace], dict[str, Any]],
    options: argparse.Namespace,
    failed: list[str],
    *,
    alone: bool = False,
) -> dict[str, Any]:
    """Return what `look` finds for each optimizer, without those that cannot run this way."""
    names = CAPTURED if WAYS[way].captured else [name for name in OPTIMIZERS if name != "MeCAM, in turn"]
    found: dict[str, Any] = {}
    torch._dynamo.reset()
    alone = alone or WAYS[way].compiled == "reduce-overhead"
    for group in [[name] for name in names] if alone else [names]:
        steps: Steps = {}
        gc.collect()
        torch.cuda.empty_cache()
        for name in group:
            try:
                steps[name] = warm_step(WAYS[way], name, options)
            except Exception as error:  # the rest of the table is worth having
                reason = (str(error).strip().splitlines() or [""])[0]
                failed.append(f"{way}, {name} failed: {type(error).__name__}: {reason}")
        found |= look(steps, options)
    print(f"{way}: {found}", file=sys.stderr)
    return found


def milliseconds(steps: Steps, options: argparse.Namespace) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.steps):
        for name, step in steps.items():
            wait(options.device)
            start = time.perf_counter()
            step()
            wait(options.device)
            taken[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(each) for name, each in taken.items()}


def gpu_work(steps: Steps, options: argparse.Namespace) -> dict[str, tuple[float, int, float]]:
    memory = torch.cuda.memory_reserved() / 2**30
    return {name: (*busy(trace(step, options.device)), memory) for name, step in steps.items()}


def trace(step: Callable[[], object], device: str) -> list[dict[str, Any]]:
    """Return what the GPU does in one step, as events of Chrome's trace format."""
    wait(device)
    with profile(activities=[ProfilerActivity.CUDA]) as record:
        step()
        wait(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        record.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]


def busy(events: list[dict[str, Any]]) -> tuple[float, int]:
    """Return the milliseconds in which at least one event runs, and the number of kernels."""
    total = end = 0.0
    for event in sorted(events, key=lambda event: float(event["ts"])):  # microseconds
        stop = event["ts"] + event["dur"]
        total += max(0.0, stop - max(event["ts"], end))
        end = max(end, stop)
    return total / 1000, sum(event["cat"] == "kernel" for event in events)


def warm_step(way: Way, optimizer: str, options: argparse.Namespace) -> Callable[[], object]:
    step = make_step(way, optimizer, options)
    images = torch.randn(options.batch, 3, options.size, options.size, device=options.device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(7, (options.batch,), device=options.device)
    for _ in range(WARM_UP):
        step(images, labels)
    wait(options.device)
    return lambda: step(images, labels)


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


if __name__ == "__main__":
    main()
