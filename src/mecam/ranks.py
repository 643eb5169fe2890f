"""The processes of one run under torchrun; every function is a no-op for a single process."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist


def count() -> int:
    """Return the number of processes that share the run."""
    return int(os.environ.get("WORLD_SIZE", 1))


def rank() -> int:
    """Return the rank of this process."""
    return int(os.environ.get("RANK", 0))


def join(device: torch.device) -> None:
    """Join the process group."""
    if count() == 1 or dist.is_initialized():
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    atexit.register(lambda: dist.destroy_process_group() if dist.is_initialized() else None)


def average(tensors: Iterable[Tensor | None]) -> None:
    """Replace each tensor by its mean over the processes, with one exchange per dtype."""
    if count() == 1:
        return
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        if tensor is not None and tensor.is_floating_point():
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
    for alike in by_dtype.values():
        flat = torch.cat([tensor.detach().flatten() for tensor in alike])
        dist.all_reduce(flat)
        flat /= count()
        for tensor, part in zip(alike, torch.split(flat, [t.numel() for t in alike]), strict=True):
            tensor.detach().copy_(part.view_as(tensor))


def total(tensor: Tensor) -> Tensor:
    """Sum over the processes in place, and return the tensor."""
    if count() > 1:
        dist.all_reduce(tensor)
    return tensor


def gather(value: Any) -> list[Any]:
    """Return the values of all processes."""
    if count() == 1:
        return [value]
    values: list[Any] = [None] * count()
    dist.all_gather_object(values, value)
    return values


def from_first(value: Any) -> Any:
    """Return the value of the first process."""
    if count() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]
