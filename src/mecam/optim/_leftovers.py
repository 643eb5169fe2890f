"""Detect gradients that the closure did not clear."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack

from torch import Tensor
from torch.utils.weak import TensorWeakRef

from mecam.optim._shards import is_distributed, local
from mecam.optim.vector import Space

UNCLEARED = (
    "there were gradients before the step and the closure did not clear them. Begin the closure with "
    "optimizer.zero_grad(). To accumulate over micro-batches, loop over them inside the closure: gradients "
    "accumulated outside (Lightning's accumulate_grad_batches, Accelerate's accumulate) belong to one pass only"
)


class Held:
    """A parameter and the gradient it has before a step, which is not kept alive."""

    __slots__ = ("doubtful", "gradient", "parameter", "version")

    def __init__(self, parameter: Tensor, gradient: Tensor) -> None:
        self.parameter, self.gradient, self.version = parameter, TensorWeakRef(gradient), local(gradient)._version
        self.doubtful = False  # untouched when autograd last computed a new gradient

    def same(self) -> bool:
        """Return whether the gradient is still the same tensor."""
        gradient = self.gradient()
        return gradient is not None and self.parameter.grad is gradient

    def untouched(self) -> bool:
        """Return whether nothing was written to it either."""
        return self.same() and local(self.gradient())._version == self.version


class Leftovers(AbstractContextManager["Leftovers"]):
    """Find gradients that the first pass added to, by identity and version: no value is read.

    A new gradient tensor means the closure cleared it. The same tensor was either zeroed in place or not cleared; a
    hook decides before the first backward. It also runs for torch.autograd.grad, which adds to nothing, so a second
    hook tells whether a gradient was added. Hooks cost time. Once a step has shown that the closure clears by None, the
    last parameter of each block has one, which looks at the others: one that is not cleared gets a hook then.

    Args:
        space: the parameters.
        every: hook every parameter.
    """

    def __init__(self, space: Space, *, every: bool) -> None:
        blocks = [[Held(p, p.grad) for p in block if p.grad is not None] for block in space.blocks]
        self.held = [each for block in blocks for each in block]
        # backward reaches the last parameter first
        self.first = self.held if every else [block[-1] for block in blocks if block]
        self.all_hooked = every
        self.uncleared = False
        self.same: list[Held] = []  # after the closure: what it did not clear by None
        self.hooks = ExitStack()

    def __enter__(self) -> Leftovers:
        for each in self.first:
            self._hook(each)
        return self

    def __exit__(self, *_: object) -> None:
        self.hooks.close()

    def _hook(self, held: Held) -> None:
        def look(_: Tensor) -> None:
            held.doubtful = held.untouched()
            if not self.all_hooked:
                self.all_hooked = True
                for other in self.held:
                    if other not in self.first and other.untouched():
                        self._hook(other)

        def added(_: Tensor) -> None:
            self.uncleared |= held.doubtful

        self.hooks.callback(held.parameter.register_hook(look).remove)  # type: ignore[no-untyped-call]
        self.hooks.callback(held.parameter.register_post_accumulate_grad_hook(added).remove)  # type: ignore[no-untyped-call]

    def require_cleared(self, loss: object, how_to_step: str) -> None:
        """Refuse gradients that were not cleared, and a closure that did nothing."""
        self.same = [held for held in self.held if held.same()]
        left = [held for held in self.same if held.untouched()]
        if loss is None and self.held and len(left) == len(self.held):
            raise TypeError(f"the closure did nothing, and there are gradients from before it. {how_to_step}")
        # FSDP2 adds to the shard's gradient without calling hooks: there only a new tensor proves the clearing
        if self.uncleared or left or any(is_distributed(held.parameter) for held in self.same):
            raise RuntimeError(UNCLEARED)
