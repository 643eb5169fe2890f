"""Detect gradients that the closure did not clear."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import islice

from torch import Tensor

from mecam.optim._shards import is_distributed, local
from mecam.optim.vector import Space

UNCLEARED = (
    "there were gradients before the step and the closure did not clear them. Begin the closure with "
    "optimizer.zero_grad(). To accumulate over micro-batches, loop over them inside the closure: gradients "
    "accumulated outside (Lightning's accumulate_grad_batches, Accelerate's accumulate) belong to one pass only"
)


class Leftovers(AbstractContextManager["Leftovers"]):
    """Find gradients that the first pass added to, by identity and version: no value is read.

    A new gradient tensor means the closure cleared it. The same tensor was either zeroed in place or not cleared; a
    hook decides before the first backward. Once a step has shown that the closure clears by None, one hook per block is
    enough, and only those gradients are kept alive.

    Args:
        space: the parameters.
        every: hook every parameter.
    """

    def __init__(self, space: Space, *, every: bool) -> None:
        self.hooked: list[tuple[Tensor, Tensor, int]] = []
        for block in space.blocks:
            held = ((p, g, _version(g)) for p in block if (g := p.grad) is not None)
            self.hooked += held if every else islice(held, 1)
        self.uncleared = False

    def __enter__(self) -> Leftovers:
        def look(parameter: Tensor, gradient: Tensor, version: int) -> Callable[[Tensor], None]:
            def hook(_: Tensor) -> None:
                self.uncleared |= parameter.grad is gradient and _version(gradient) == version

            return hook

        self.handles = [p.register_hook(look(p, g, v)) for p, g, v in self.hooked]  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    @property
    def untouched(self) -> bool:
        """Return whether there were gradients and the closure changed none of them."""
        return bool(self.hooked) and all(p.grad is g and _version(g) == v for p, g, v in self.hooked)

    def same(self) -> bool:
        """Return whether any gradient is still the same tensor."""
        return any(p.grad is g for p, g, _ in self.hooked)

    def require_cleared(self) -> None:
        for parameter, gradient, version in self.hooked:
            # FSDP2 adds to the shard's gradient without calling hooks: there only a new tensor proves the clearing
            same = parameter.grad is gradient and (is_distributed(parameter) or _version(gradient) == version)
            self.uncleared |= same
        if self.uncleared:
            raise RuntimeError(UNCLEARED)


def _version(tensor: Tensor) -> int:
    return local(tensor)._version
