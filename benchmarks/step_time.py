"""Measure a step of each optimizer, relative to a plain Adam step on the same network and batch.

    python benchmarks/step_time.py
    python benchmarks/step_time.py --device cuda --network resnet50 --size 224 --precision bf16 --channels-last

Steps are interleaved: plain, A, plain, plain, B, plain, ... A's ratio in a round is its time over the mean of the plain
steps before and after it, so a slower machine affects both. The table has the median over the rounds and the quartiles.
On a busy machine, --patience repeats measurements that other programs disturbed, and --clock cpu --threads 1 measures
this program's processor time instead of wall time.

Every step is complete: clear the gradients, forward, backward, update. All optimizers share one network, given as
model=, each with its own Adam as base. "mecam+mixstyle" has its own copy with MixStyle after layer1 and layer2.
LookSAM, which takes two passes in one of ten steps, is timed over ten steps.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from machine import Others, heading, publish, subset, table
from mecam import models
from mecam.optim import OPTIMIZERS, create
from mecam.virtual import MixStyle

OTHER_SAM = "pytorch_optimizer.SAM"
STYLED = "mecam+mixstyle"
METHODS = [name for name, entry in OPTIMIZERS.items() if entry.sharpness_aware is not None and not entry.stands_for]
NAMES = [*METHODS, STYLED, OTHER_SAM]
PERIODS = {"looksam": "k"}  # the setting with the period in steps
LEARNING_RATE = 1e-6
WARM_UP = 2
QUIET = 0.03  # a share of the processors used by other programs up to which a machine counts as idle


@dataclass(frozen=True)
class Contender:
    """A function to time; a sample is `steps` consecutive steps."""

    name: str
    passes: int
    step: Callable[[], object]
    steps: int


@dataclass(frozen=True)
class Measurement:
    seconds: float  # per step
    ratio: float  # to a plain step
    others: float  # share of the processors that other programs used


Round = dict[str, Measurement]
Clock = Callable[[Contender], float]


@dataclass(frozen=True)
class Setting:
    """The network and its forward and backward pass."""

    network: nn.Module
    images: Tensor
    labels: Tensor
    precision: str
    compiled: bool

    def with_mixstyle(self, style: MixStyle) -> Setting:
        network = copy.deepcopy(self.network)
        style.attach(network, ["layer1", "layer2"])
        return Setting(network, self.images, self.labels, self.precision, self.compiled)

    def closure(self, optimizer: torch.optim.Optimizer) -> Callable[[], Tensor]:
        forward = torch.compile(self.network) if self.compiled else self.network

        def closure() -> Tensor:
            optimizer.zero_grad()
            with torch.autocast(self.images.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
                loss = nn.functional.cross_entropy(forward(self.images), self.labels)
            loss.backward()
            return loss

        return closure


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    setting = make_setting(options)
    plain = make_plain(setting, options)
    contenders, missing = [], []
    for name in options.optimizers:
        try:
            contenders.append(make_contender(name, setting, options))
        except ImportError:
            missing.append(name)
    clock = cuda if options.device == "cuda" else CLOCKS[options.clock]
    for contender in [plain, *contenders] * WARM_UP:
        clock(contender)
    deadline = time.monotonic() + options.patience
    rounds = [{each.name: measure(plain, each, clock, deadline) for each in contenders} for _ in range(options.repeats)]
    facts = {
        "setting": describe(options),
        "repeats": f"{options.repeats} rounds, {options.burst} steps per sample, after {WARM_UP} samples of warm-up",
        "load": describe_load([sample.others for taken in rounds for sample in taken.values()]),
    }
    publish(
        [
            *heading("Step time, in plain Adam steps", options.device, facts),
            *table(["optimizer", "passes", "ratio", "quartiles", "ms per step"], rows(contenders, rounds)),
            *comparison(contenders, rounds),
            *(f"\nNot measured, since it cannot be imported here: {name}." for name in missing),
        ],
        options.out,
    )


def make_setting(options: argparse.Namespace) -> Setting:
    stem = {"small_input": True} if options.small_input else {}
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    network: nn.Module = getattr(models, options.network)(classes=7, **stem)
    network = network.to(options.device, memory_format=layout)  # type: ignore[call-overload]
    if options.frozen_bn:
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
    images = torch.randn(options.batch, 3, options.size, options.size, device=options.device)
    labels = torch.randint(7, (options.batch,), device=options.device)
    return Setting(network, images.contiguous(memory_format=layout), labels, options.precision, options.compile)


def make_plain(setting: Setting, options: argparse.Namespace) -> Contender:
    optimizer = torch.optim.Adam(setting.network.parameters(), lr=LEARNING_RATE, fused=options.fused or None)
    closure = setting.closure(optimizer)
    return Contender("adam", 1, lambda: optimizer.step(closure), options.burst)


def make_contender(name: str, setting: Setting, options: argparse.Namespace) -> Contender:
    if name == OTHER_SAM:
        return make_other_sam(setting, options)
    extra: dict[str, Any] = {"nonfinite": options.nonfinite, "fused": options.fused or None}
    if name == STYLED:
        extra["virtual_domain"] = MixStyle(p=1.0)
        setting = setting.with_mixstyle(extra["virtual_domain"])
    if not options.hooks:
        extra["model"] = setting.network
    entry = OPTIMIZERS["mecam" if name == STYLED else name]
    optimizer = create(entry.name, setting.network.parameters(), lr=LEARNING_RATE, **extra)
    closure = setting.closure(optimizer)
    steps = entry.defaults[PERIODS[name]] if name in PERIODS else options.burst
    return Contender(name, entry.passes, lambda: optimizer.step(closure), steps)


def make_other_sam(setting: Setting, options: argparse.Namespace) -> Contender:
    from pytorch_optimizer import SAM

    optimizer = SAM(setting.network.parameters(), torch.optim.Adam, lr=LEARNING_RATE, fused=options.fused or None)
    closure = setting.closure(optimizer)

    def step() -> None:
        closure()
        optimizer.step(closure)

    return Contender(OTHER_SAM, 2, step, options.burst)


def measure(plain: Contender, contender: Contender, clock: Clock, deadline: float) -> Measurement:
    """Measure once; repeat until the deadline while other programs run."""
    while True:
        others = Others()
        before, taken, after = (clock(each) for each in (plain, contender, plain))
        measurement = Measurement(taken, 2 * taken / (before + after), others.share())
        if measurement.others < QUIET or time.monotonic() > deadline:
            return measurement
        time.sleep(1)


def wall(contender: Contender) -> float:
    """Return seconds per step."""
    start = time.perf_counter()
    for _ in range(contender.steps):
        contender.step()
    return (time.perf_counter() - start) / contender.steps


def cpu(contender: Contender) -> float:
    """Return seconds of processor time per step."""
    start = time.process_time()
    for _ in range(contender.steps):
        contender.step()
    return (time.process_time() - start) / contender.steps


def cuda(contender: Contender) -> float:
    """Return seconds per step on the device."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(contender.steps):
        contender.step()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000 / contender.steps


CLOCKS = {"wall": wall, "cpu": cpu}


def rows(contenders: list[Contender], rounds: list[Round]) -> list[list[str]]:
    made = []
    for contender in contenders:
        taken = [each[contender.name] for each in rounds]
        milliseconds = f"{1000 * statistics.median(each.seconds for each in taken):.1f}"
        made.append([contender.name, str(contender.passes), *middle([each.ratio for each in taken]), milliseconds])
    return made


def comparison(contenders: list[Contender], rounds: list[Round]) -> list[str]:
    if not {"sam", OTHER_SAM} <= {contender.name for contender in contenders}:
        return []
    ratio, quartiles = middle([taken["sam"].ratio / taken[OTHER_SAM].ratio for taken in rounds])
    return ["", f"sam over {OTHER_SAM}, round by round: {ratio} (quartiles {quartiles})."]


def describe_load(shares: list[float]) -> str:
    busy = sum(share >= QUIET for share in shares) / len(shares)
    return (
        f"other programs used {statistics.median(shares):.0%} of the processors during the median measurement, "
        f"and {QUIET:.0%} or more during {busy:.0%} of the measurements"
    )


def middle(values: Sequence[float]) -> tuple[str, str]:
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{median:.3f}", f"{low:.3f} to {high:.3f}"


def describe(options: argparse.Namespace) -> str:
    chosen = [
        f"{options.network} with the {'small' if options.small_input else 'default'} stem",
        f"{options.batch} images of {options.size} px",
        options.precision,
        "batch norm frozen" if options.frozen_bn else "batch norm live",
        *(["channels last"] if options.channels_last else []),
        *(["compiled"] if options.compile else []),
        *(["fused Adam"] if options.fused else []),
        f"nonfinite={options.nonfinite}",
        *(["processor time"] if options.device == "cpu" and options.clock == "cpu" else []),
        "without model=, batch norm found by hooks" if options.hooks else "with model=",
    ]
    return ", ".join(chosen)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="threads on the CPU")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall", help="clock on the CPU")
    parser.add_argument("--network", choices=[n for n in models.__all__ if n.startswith("resnet")], default="resnet18")
    parser.add_argument("--small-input", action="store_true", help="a 3x3 stem without pooling")
    parser.add_argument("--size", type=int, default=32, help="image side in pixels")
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--precision", choices=["float32", "bf16"], default="float32")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--frozen-bn", action="store_true")
    parser.add_argument("--compile", action="store_true", help="torch.compile the network")
    parser.add_argument("--fused", action="store_true", help="fused Adam, for the plain step and as base")
    parser.add_argument("--nonfinite", choices=["raise", "skip", "ignore"], default="raise", help="optimizer option")
    parser.add_argument("--hooks", action="store_true", help="do not pass model= to the optimizers")
    parser.add_argument("--repeats", type=int, default=40, help="rounds; at least 2")
    parser.add_argument("--patience", type=float, default=0, help="total seconds to repeat disturbed measurements")
    parser.add_argument("--burst", type=int, help="steps per sample (default: 1 on the CPU, 5 on cuda)")
    parser.add_argument("--optimizers", type=subset(NAMES), default=NAMES, help=f"a subset of {','.join(NAMES)}")
    parser.add_argument("--out", type=Path, help="also write the results to this file")
    options = parser.parse_args(arguments)
    options.burst = options.burst or (1 if options.device == "cpu" else 5)
    return options


if __name__ == "__main__":
    main()
