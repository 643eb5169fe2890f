"""The memory that a training step takes, and the memory that is available."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

from mecam import methods
from mecam.data.domains import DomainSet
from mecam.recipe import Recipe
from mecam.training.machine import Machine
from mecam.training.nonfinite import BadStep
from mecam.training.run import Run
from mecam.training.step import train_step

# gradients of activations, workspaces, gaps between blocks: with EfficientNet-Lite0 on a CPU, steps of 8 to 32 images
# took 1.2 to 1.75 times the memory that the backward pass keeps
OVERHEAD = 1.5
COPIES = 8  # of the weights: gradients, Adam's moments, and those of a sharpness-aware step
CGROUPS = Path("/sys/fs/cgroup")


def memory_of_step(recipe: Recipe, machine: Machine, data: DomainSet) -> tuple[float, float]:
    """Return the bytes of a step without images, and those that each image per domain adds, by a small step."""
    batch = recipe.accumulate * max(2, methods.METHODS.find(recipe.method).images)
    run = Run(replace(recipe, batch=batch, compile="never"), machine, data)  # which would take longer than the step
    kept = _Kept(run.parameters)
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, _Saved.unpack), suppress(BadStep):
        train_step(run, next(step for step in count(recipe.steps // 2) if not run.method.declines(step)))
    weights = sum((COPIES if parameter.requires_grad else 1) * parameter.nbytes for parameter in run.parameters)
    return weights, OVERHEAD * kept.most / batch


def available_memory(device: torch.device) -> int | None:
    """Return the bytes that a run can take on this device; None if the system does not report it."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    limits = [_free_memory(), *(_left(folder) for folder in _cgroups())]
    return min((size for size in limits if size is not None), default=None)


class _Kept:
    """Count the bytes of the tensors that are kept for backward passes, without weights; views count once."""

    def __init__(self, weights: Iterable[Tensor]) -> None:
        self.uses = {weight.untyped_storage().data_ptr(): 1 for weight in weights}
        self.now = self.most = 0

    def pack(self, tensor: Tensor) -> _Saved:
        return _Saved(self, tensor)


class _Saved:
    """A tensor that is kept for a backward pass."""

    def __init__(self, kept: _Kept, tensor: Tensor) -> None:
        self.kept, self.tensor = kept, tensor
        storage = tensor.untyped_storage()
        self.key, self.size = storage.data_ptr(), storage.nbytes()
        kept.uses[self.key] = kept.uses.get(self.key, 0) + 1
        if kept.uses[self.key] == 1:
            kept.now += self.size
            kept.most = max(kept.most, kept.now)

    def unpack(self) -> Tensor:
        return self.tensor

    def __del__(self) -> None:
        self.kept.uses[self.key] -= 1
        if not self.kept.uses[self.key]:
            del self.kept.uses[self.key]
            self.kept.now -= self.size


def _free_memory() -> int | None:
    """Return the memory that Linux reports as available."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return None


def _cgroups() -> list[Path]:
    """Return the folder of this process' control group and those above it; a container sees its own as the root."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own = next(line[3:] for line in lines if line.startswith("0::"))
        inside = CGROUPS / own.lstrip("/")
        return [folder for folder in (inside, *inside.parents) if folder.is_relative_to(CGROUPS)]
    return []


def _left(cgroup: Path) -> int | None:
    """Return the memory left under the limit of a control group; cached files do not count as used."""
    with suppress(OSError, ValueError, StopIteration):
        limit = int((cgroup / "memory.max").read_text())  # "max" is no limit
        lines = (cgroup / "memory.stat").read_text().splitlines()
        return limit - next(int(line.split()[1]) for line in lines if line.startswith("anon "))
    return None
