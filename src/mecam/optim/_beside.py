"""Run the perturbed passes of a captured step side by side, each at its own copy of the weights.

Buys: MeCAM's two perturbed passes take a tenth less time on an H200 (benchmarks/results/own_loop.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import torch
from torch import Tensor

from mecam.optim.vector import Space

SPARE = 2.2  # memory of a step that must be free: two passes at once, and what fragmentation takes


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

    @contextmanager
    def away(self, number: int) -> Iterator[None]:
        """Wrap pass `number`, counted from 0: the parameters hold copies of the weights meanwhile."""
        with self._fork() if number < self.passes - 1 else nullcontext():
            home = [(parameter, parameter.data) for parameter in self.space.parameters]
            for parameter, copy in self.space.weights().copy().items():
                if copy is not None:
                    parameter.data = copy
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
            self.forked = False

    def _fork(self) -> AbstractContextManager[None]:
        if self.device.type != "cuda":
            return nullcontext()
        self.forked = True
        stream = _side_stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        context: AbstractContextManager[None] = torch.cuda.stream(stream)
        return context


def fits(space: Space) -> bool:
    """Return whether passes can run side by side. A step must have shown how much memory it takes."""
    device = space.kinds[0].device
    if device.type != "cuda" or any(kind.device != device or kind.distributed for kind in space.kinds):
        return False
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return False  # an exchange of gradients has one order on all ranks
    if not all(map(_owns_its_memory, space.parameters)):
        return False  # who holds the whole, such as a flat buffer of weights, would not see the copies
    used = torch.cuda.memory_allocated(device)
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - used
    return free > SPARE * (torch.cuda.max_memory_allocated(device) - used)


def _owns_its_memory(parameter: Tensor) -> bool:
    plain = type(parameter) in (Tensor, torch.nn.Parameter)
    return plain and parameter.untyped_storage().nbytes() == parameter.numel() * parameter.element_size()


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return one stream per device: libraries keep memory for every stream that they have seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
