"""The machine a run is on: its device, its precision and its description for run.json."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from mecam import ranks
from mecam.training import environment

# options of glibc's mallopt, and bytes: blocks up to MMAP_THRESHOLD come from the heap; of its free end, up to
# TRIM_THRESHOLD stays with the process
MMAP_THRESHOLD, TRIM_THRESHOLD, TOP_PAD = (-3, 256 << 20), (-1, 512 << 20), (-2, 64 << 20)


@dataclass(frozen=True)
class Machine:
    """The device and the precision of a run."""

    device: torch.device
    precision: str  # "fp32" or "bf16"

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes files and prints."""
        return ranks.rank() == 0

    @property
    def autocast(self) -> torch.dtype | None:
        return torch.bfloat16 if self.precision == "bf16" else None

    def describe(self) -> dict[str, Any]:
        """Return the environment, for run.json."""
        gpu = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else None
        return {
            **environment.describe(),
            "device": gpu or self.device.type,
            "precision": self.precision,
            "ranks": ranks.count(),
        }


def find_machine(device: str = "auto", precision: str = "auto", *, deterministic: bool = False) -> Machine:
    """Return the machine for these options of the command line; under torchrun, the share of this process.

    `deterministic` makes this process use kernels that give the same bits each time, not the fastest ones.
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
    if chosen.type == "cpu":
        keep_freed_memory()
    if chosen.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it, before its first call
        torch.use_deterministic_algorithms(deterministic, warn_only=True)
        torch.backends.cudnn.benchmark = False  # comparing kernels delays the start and finds no faster step
    return Machine(chosen, precision)


def keep_freed_memory() -> None:
    """Let glibc reuse the memory of activations in place of returning it to the system after each layer.

    A forward of EfficientNet-Lite0 on a CPU spends more than half of its time on the page faults otherwise. Other C
    libraries, and processes with MALLOC_ settings in their environment, are left as they are.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        if hasattr(library, "gnu_get_libc_version"):
            for option, value in (MMAP_THRESHOLD, TRIM_THRESHOLD, TOP_PAD):
                library.mallopt(option, value)
