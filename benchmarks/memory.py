"""Measure the peak memory of a step of each optimizer, beyond parameters, gradients and the base optimizer's state.

    python benchmarks/memory.py
    python benchmarks/memory.py --device cuda --width 4096

The unit is a parameter-sized buffer. The network is a stack of wide linear layers and the batch has two rows, so that
activations are negligible. The peak is over whole steps with Adam as base, including the first. On the CPU it comes
from the profiler's record of every allocation, including temporaries inside operators; on cuda from the caching
allocator. State between steps (F-SAM's m, LookSAM's v) counts.

    SAM: the weights to restore, and the gradient that perturbed them: 2.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from machine import heading, publish, subset, table
from mecam.optim import OPTIMIZERS, create

OTHER_SAM = "pytorch_optimizer.SAM"
METHODS = [name for name, entry in OPTIMIZERS.items() if entry.sharpness_aware is not None and not entry.stands_for]
NAMES = ["adam", *METHODS, OTHER_SAM]
STEPS = 4
# the measured steps include both kinds
SETTINGS: dict[str, dict[str, Any]] = {"looksam": {"k": 2}}


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    rows = [[name, measure(name, options)] for name in options.optimizers]
    facts = {
        "setting": f"{options.layers} linear layers of {options.width} x {options.width} float32, "
        f"a buffer is {options.layers * options.width**2 * 4 / 2**20:g} MiB",
        "repeats": f"the highest peak of {STEPS} steps",
    }
    title = "Peak memory of a step beyond parameters, gradients and Adam's state"
    publish([*heading(title, options.device, facts), *table(["optimizer", "buffers"], rows)], options.out)


def measure(name: str, options: argparse.Namespace) -> str:
    """Return the peak in parameter-sized buffers."""
    try:
        network, optimizer, peak = (cuda_peak if options.device == "cuda" else cpu_peak)(name, options)
    except ImportError:
        return "cannot be imported here"
    finally:
        gc.collect()  # an optimizer and its closure reference each other
    unit = size(network.parameters())
    state = size(value for held in optimizer.state.values() for value in held.values() if isinstance(value, Tensor))
    return f"{(peak - 2 * unit - state) / unit:.2f}"


def cpu_peak(name: str, options: argparse.Namespace) -> tuple[nn.Module, torch.optim.Optimizer, int]:
    """Return the network, the optimizer and their peak number of bytes."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        network, optimizer, step = build(name, options)
        for _ in range(STEPS):
            step()
    events = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]  # type: ignore[union-attr]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return network, optimizer, max(accumulate(changes))


def cuda_peak(name: str, options: argparse.Namespace) -> tuple[nn.Module, torch.optim.Optimizer, int]:
    nn.Linear(8, 8, device="cuda")(torch.ones(8, 8, device="cuda")).sum().backward()  # allocates cuBLAS's workspace
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    network, optimizer, step = build(name, options)
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return network, optimizer, torch.cuda.max_memory_allocated() - before


def build(name: str, options: argparse.Namespace) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], object]]:
    torch.manual_seed(0)
    layers = [nn.Linear(options.width, options.width, bias=False) for _ in range(options.layers)]
    network = nn.Sequential(*layers).to(options.device)
    inputs = torch.randn(2, options.width, device=options.device)
    optimizer = make_optimizer(name, network)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = network(inputs).square().mean()
        loss.backward()
        return loss

    def step() -> None:
        if name == OTHER_SAM:
            closure()
        optimizer.step(closure)

    return network, optimizer, step


def make_optimizer(name: str, network: nn.Module) -> torch.optim.Optimizer:
    if name == OTHER_SAM:
        from pytorch_optimizer import SAM

        return SAM(network.parameters(), torch.optim.Adam, lr=1e-5)
    model = {} if name == "adam" else {"model": network}
    return create(name, network.parameters(), **SETTINGS.get(name, {}), **model)


def size(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--optimizers", type=subset(NAMES), default=NAMES, help=f"a subset of {','.join(NAMES)}")
    parser.add_argument("--out", type=Path, help="also write the results to this file")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
