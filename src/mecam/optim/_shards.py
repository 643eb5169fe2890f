"""Sharded parameters (FSDP2's DTensors): work on this rank's shard, add up over the ranks that share the tensor.

foreach kernels have no DTensor rules for copies, and need none: everything but a norm is local. DTensors are told by
their `to_local` method, so that a program without torch.distributed never imports it.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

Meshes = tuple[tuple[Any, int], ...]  # the (device mesh, dimension) pairs a tensor is split over
MaybeTensor = TypeVar("MaybeTensor", Tensor, Tensor | None)


def is_distributed(tensor: Tensor) -> bool:
    return hasattr(type(tensor), "to_local")


def local(tensor: MaybeTensor) -> MaybeTensor:
    """This rank's part of the tensor: the tensor itself unless it is sharded."""
    if tensor is None or not is_distributed(tensor):
        return tensor
    return cast("Any", tensor).to_local()  # type: ignore[no-any-return]


def is_flat_shard(parameter: Tensor) -> bool:
    """Whether FSDP1 holds the parameter: a piece of a flat one, which does not say over which ranks it is split."""
    return hasattr(parameter, "_fsdp_flattened")


def split_like(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The gradient split as its parameter is. Tensor parallelism may leave a sum over ranks to be made."""
    if not is_distributed(gradient):
        return gradient
    held, wanted = cast("Any", gradient), cast("Any", parameter).placements
    return gradient if held.placements == wanted else held.redistribute(placements=wanted)


def meshes(tensor: Tensor) -> Meshes:
    """Over which mesh dimensions the tensor is split; () for an ordinary or replicated one."""
    if not is_distributed(tensor):
        return ()
    distributed: Any = tensor
    # not `is_shard()`: the strided shards of FSDP2 on top of tensor parallelism answer no to that
    return tuple((distributed.device_mesh, i) for i, p in enumerate(distributed.placements) if not p.is_replicate())


def reshard(model: nn.Module | None) -> None:
    """Let FSDP2 drop the weights it gathered; a backward does that, but a closure may raise before its backward.

    The next forward would use them again, although the shards have moved since.
    """
    for module in () if model is None else model.modules():
        if hasattr(type(module), "reshard"):
            cast("Any", module).reshard()


def sum_over(value: Tensor, split: Meshes) -> Tensor:
    """The sum of a partial result over all ranks that hold a shard."""
    for mesh, dimension in split:
        torch.distributed.all_reduce(value, group=mesh.get_group(dimension))
    return value


def mean_over(tensors: list[Tensor | None], like: list[Tensor], group: Any) -> list[Tensor | None]:
    """The mean of each tensor over the ranks of `group`, in one all-reduce a device and dtype; a hole counts as zero.

    A tensor that is a hole on every rank stays one. Only a rank with a hole has to ask (a flag travels with the
    data), so that ordinary steps do not wait for the device.
    """
    kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, p in enumerate(like):
        kinds.setdefault((p.device, p.dtype), []).append(i)
    means: list[Tensor | None] = [None] * len(tensors)
    for (device, dtype), members in kinds.items():
        parts = [torch.zeros_like(like[i]) if (t := tensors[i]) is None else t for i in members]
        held = torch.tensor([tensors[i] is not None for i in members], dtype=dtype).to(device, non_blocking=True)
        flat = torch.cat([*(part.reshape(-1) for part in parts), held])
        flat.div_(torch.distributed.get_world_size(group))  # before they are added up, as DDP does: halves overflow
        torch.distributed.all_reduce(flat, group=group)
        *found, present = torch.split(flat, [*(part.numel() for part in parts), len(parts)])
        for i, part, mean, anywhere in zip(members, parts, found, present, strict=True):
            means[i] = None if tensors[i] is None and not bool(anywhere > 0) else mean.view_as(part)
    return means
