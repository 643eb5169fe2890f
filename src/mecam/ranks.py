"""The processes of one run under torchrun: a single process needs none of this, and every function here lets it be."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist


def count() -> int:
    """How many processes share the run."""
    return int(os.environ.get("WORLD_SIZE", 1))


def rank() -> int:
    """The number of this process, from 0."""
    return int(os.environ.get("RANK", 0))


def join(device: torch.device) -> None:
    """Meet the other processes, if there are any."""
    if count() == 1 or dist.is_initialized():
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    atexit.register(_leave)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def average(tensors: Iterable[Tensor | None]) -> None:
    """Replace each tensor by its mean over the processes, one exchange for each dtype.

    Gradients are averaged once a pass, after the backward, rather than by hooks within it: so every way of making
    gradients, surgery on them included, is treated alike. The exchange does not overlap with the backward.
    """
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
    """The sum over the processes."""
    if count() > 1:
        dist.all_reduce(tensor)
    return tensor


def gather(value: Any) -> list[Any]:
    """What each process has, on all of them."""
    if count() == 1:
        return [value]
    found: list[Any] = [None] * count()
    dist.all_gather_object(found, value)
    return found


def from_first(value: Any) -> Any:
    """What the first process has, on all of them."""
    if count() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]
