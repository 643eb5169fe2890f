"""Run the perturbed passes of a captured step side by side, each at its own copy of the weights.

Buys: MeCAM's two perturbed passes take a tenth less time on an H200 (benchmarks/results/own_loop.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import torch
from torch import Tensor

from mecam.optim._options import in_process_group
from mecam.optim.vector import Space, Vector

SPARE = 1.1  # of the memory that passes side by side are expected to take


class SideBySide:
    """Passes that do not wait for each other in a CUDA graph.

    All but the last run on a side stream. Nothing may use their gradients before `join`.

    Args:
        space: the parameters.
        passes: the number of passes of the step.
    """

    def __init__(self, space: Space, passes: int) -> None:
        self.space, self.passes = space, passes
        self.device = space.kinds[0].device
        self.forked = False
        self.offsets: list[Vector | None] = []  # a side stream may read them until `join`

    @contextmanager
    def at(self, offset: Vector | None, number: int) -> Iterator[None]:
        """Wrap pass `number`, counted from 0: the parameters hold copies of the weights, moved by the offset."""
        self.offsets.append(offset)
        with self._fork() if number < self.passes - 1 else nullcontext():
            home = [(parameter, parameter.data) for parameter in self.space.parameters]
            for parameter, copy in self.space.weights().copy().items():
                if copy is not None:
                    parameter.data = copy
            if offset is not None:
                offset.add_to_weights()
            torch.clear_autocast_cache()
            try:
                yield
            finally:
                for parameter, weights in home:
                    parameter.data = weights
                torch.clear_autocast_cache()

    def join(self) -> None:
        """Let later work wait for all passes."""
        if self.forked:
            torch.cuda.current_stream(self.device).wait_stream(_side_stream(self.device))
        self.forked, self.offsets = False, []

    def _fork(self) -> AbstractContextManager[None]:
        if self.device.type != "cuda":
            return nullcontext()
        self.forked = True
        stream = _side_stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        context: AbstractContextManager[None] = torch.cuda.stream(stream)
        return context


def fits(space: Space) -> bool:
    """Return whether passes can run side by side. Call it after a step: it reads the step's peak memory."""
    device = space.kinds[0].device
    if device.type != "cuda" or any(kind.device != device or kind.distributed for kind in space.kinds):
        return False
    if in_process_group():
        return False  # an exchange of gradients has one order on all ranks
    addresses = {parameter.data_ptr() for parameter in space.parameters}
    if len(addresses) < len(space.parameters) or not all(map(_owns_its_memory, space.parameters)):
        return False  # who reads the same memory by another tensor would not see the copies
    weights = sum(p.numel() * p.element_size() for p in space.parameters)
    one_pass = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
    # two copies of the weights, three gradients, and the state that the base optimizer makes in its first step
    return _free(device) > SPARE * (2 * one_pass + 7 * weights)


def _owns_its_memory(parameter: Tensor) -> bool:
    plain = type(parameter) in (Tensor, torch.nn.Parameter)
    return plain and parameter.untyped_storage().nbytes() == parameter.numel() * parameter.element_size()


def _free(device: torch.device) -> int:
    """Return the bytes that a capture can use: what is free, and what the allocator gives back before it."""
    kept = (
        int(segment["total_size"])
        for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        if segment["device"] == device.index and segment["segment_pool_id"] == (0, 0) and not segment["active_size"]
    )
    return torch.cuda.mem_get_info(device)[0] + sum(kept)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return one stream per device: libraries keep memory for every stream that they have seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
