"""The machine a run is on: its device, its precision, and what to write down about it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from mecam import ranks
from mecam.training import environment


@dataclass(frozen=True)
class Machine:
    """Where a run runs."""

    device: torch.device
    precision: str  # "fp32" or "bf16"

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes files and talks."""
        return ranks.rank() == 0

    @property
    def autocast(self) -> torch.dtype | None:
        return torch.bfloat16 if self.precision == "bf16" else None

    def describe(self) -> dict[str, Any]:
        """The environment, for run.json."""
        gpu = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else None
        return {
            **environment.describe(),
            "device": gpu or self.device.type,
            "precision": self.precision,
            "ranks": ranks.count(),
        }


def find_machine(device: str = "auto", precision: str = "auto", *, deterministic: bool = False) -> Machine:
    """The machine by the words of the command line; under torchrun, this process's share of it.

    `deterministic`: of this process from now on, kernels that give the same bits each time, rather than the fastest.
    """
    if device == "auto":
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device={device!r} is not a device torch knows: {error}") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda, but torch sees no CUDA device here; give --device cpu")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device={device}, but torch sees {torch.cuda.device_count()} CUDA devices here, from cuda:0")
    has_bf16 = chosen.type == "cuda" and torch.cuda.is_bf16_supported()
    if precision == "auto":
        precision = "bf16" if has_bf16 else "fp32"
    ranks.join(chosen)
    if chosen.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it, before its first call
        torch.use_deterministic_algorithms(deterministic, warn_only=True)
        torch.backends.cudnn.benchmark = False  # trying kernels took 20 s a process and found no faster step
    return Machine(chosen, precision)
