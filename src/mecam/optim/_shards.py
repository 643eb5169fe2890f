"""Sharded parameters (FSDP2's DTensors): compute on this rank's shard, sum over the ranks that share a tensor.

foreach kernels have no DTensor rules for copies, and need none: everything but a norm is local. DTensors are told by
their `to_local` method, so that a program without torch.distributed never imports it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

Meshes = tuple[tuple[Any, int], ...]  # the (device mesh, dimension) pairs a tensor is split over
MaybeTensor = TypeVar("MaybeTensor", Tensor, Tensor | None)


def is_distributed(tensor: Tensor) -> bool:
    return hasattr(type(tensor), "to_local")


def local(tensor: MaybeTensor) -> MaybeTensor:
    """Return this rank's part of the tensor: the tensor itself unless it is sharded."""
    if tensor is None or not is_distributed(tensor):
        return tensor
    return cast("Any", tensor).to_local()  # type: ignore[no-any-return]


def refuse_flat_shards(owner: str, parameters: Iterable[Tensor]) -> None:
    """Refuse the flat shards of FSDP1, whose ranks are unknown."""
    if any(hasattr(parameter, "_fsdp_flattened") for parameter in parameters):
        raise ValueError(
            f"{owner}: FullyShardedDataParallel (FSDP1) does not show how its parameters are sharded, so no norm over "
            "all ranks can be taken. Shard the model with torch.distributed.fsdp.fully_shard (FSDP2)"
        )


def split_like(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return the gradient sharded like its parameter. Tensor parallelism may leave a partial sum."""
    if not is_distributed(gradient):
        return gradient
    held, wanted = cast("Any", gradient), cast("Any", parameter).placements
    return gradient if held.placements == wanted else held.redistribute(placements=wanted)


def meshes(tensor: Tensor) -> Meshes:
    """Return the mesh dimensions that the tensor is sharded over; () if it is not sharded."""
    if not is_distributed(tensor):
        return ()
    distributed: Any = tensor
    # not `is_shard()`: the strided shards of FSDP2 on top of tensor parallelism answer no to that
    return tuple((distributed.device_mesh, i) for i, p in enumerate(distributed.placements) if not p.is_replicate())


def reshard(model: nn.Module | None) -> None:
    """Free the weights that FSDP2 gathered, as a backward does: a closure may raise before its backward.

    The next forward would use them again, although the shards have moved since.
    """
    for module in () if model is None else model.modules():
        if hasattr(type(module), "reshard"):
            cast("Any", module).reshard()


def sum_over(value: Tensor, split: Meshes) -> Tensor:
    """Sum a partial result over all ranks that hold a shard."""
    for mesh, dimension in split:
        torch.distributed.all_reduce(value, group=mesh.get_group(dimension))
    return value


def mean_over(tensors: list[Tensor | None], like: list[Tensor], group: Any) -> list[Tensor | None]:
    """Average each tensor over the ranks of `group`, in one all-reduce per device and dtype; None counts as zero.

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
        *averages, present = torch.split(flat, [*(part.numel() for part in parts), len(parts)])
        for i, part, mean, anywhere in zip(members, parts, averages, present, strict=True):
            means[i] = None if tensors[i] is None and not bool(anywhere > 0) else mean.view_as(part)
    return means
