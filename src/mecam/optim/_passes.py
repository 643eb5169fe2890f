"""The passes of one step: the closure, called at the weights a formula asks for; everything put back afterwards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from itertools import islice
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from mecam.optim._buffers import Buffers, is_expanded
from mecam.optim._noise import RandomState
from mecam.optim._shards import is_distributed, local, split_like
from mecam.optim.vector import Scalar, Space, Vector, is_finite

Closure = Callable[[], Any]


class VirtualDomain(Protocol):
    """Anything that can be switched on around a pass."""

    def active(self) -> AbstractContextManager[Any]: ...


class GradAt(Protocol):
    """grad f(theta + offset), on a virtual domain if one is given."""

    def __call__(self, offset: Vector | None = None, domain: VirtualDomain | None = None) -> Vector: ...


class NoGradientError(RuntimeError):
    """The closure gave no parameter a gradient; `loss` is what it returned."""

    def __init__(self, loss: Any) -> None:
        super().__init__(
            "the closure ran, but no parameter of this optimizer has a gradient. "
            "Does it call loss.backward(), and does the loss depend on these parameters?"
        )
        self.loss = loss


class Passes:
    """Calls the closure for a formula. The first call is at theta; each later one leaves no trace but its gradient."""

    def __init__(
        self,
        space: Space,
        closure: Closure,
        *,
        buffers: Buffers,
        shared_noise: bool = False,
        unscale: Scalar | None = None,
        around: Callable[[], AbstractContextManager[Any]] | None = None,
        after_first: Callable[[], None] | None = None,
        record: bool = False,
    ) -> None:
        self.space = space
        self.closure = closure
        self.buffers = buffers
        self.unscale = unscale
        self.around = around
        self.after_first = after_first
        self.record = record
        self.noise = RandomState.now(kind.device for kind in space.kinds) if shared_noise else None
        self.losses: list[Any] = []
        self.finite: Tensor | None = None  # with `unscale`: whether no pass so far overflowed
        self.gradients: list[Vector] = []  # all of them if `record`, else the newest
        self._weights: Vector | None = None  # a copy of theta while the weights are elsewhere

    def grad_at(self, offset: Vector | None = None, domain: VirtualDomain | None = None) -> Vector:
        first = not self.losses
        if not first:
            for parameter in self.space.parameters:
                parameter.grad = None  # its tensor is ours now: the next backward must not add to it
            if not self.record:
                self.gradients = []  # and the formula's to keep
        self._move(offset)
        with ExitStack() as stack:
            if domain is not None:
                stack.enter_context(domain.active())
            if self.around is not None:
                stack.enter_context(self.around())
            leftovers = stack.enter_context(Leftovers(self.space)) if first else None
            if not first:
                stack.enter_context(self.buffers.watched())
                if self.noise is not None:
                    stack.enter_context(self.noise.replayed())
            with torch.enable_grad():
                loss = self.closure()
        if leftovers is not None:
            leftovers.require_cleared()
        gradient = self._take(loss)
        self.losses.append(loss.detach() if isinstance(loss, Tensor) else loss)  # its graph need not outlive the pass
        self.gradients = [*self.gradients, gradient] if self.record else [gradient]
        return gradient

    def restore(self) -> None:
        """Weights and buffers as a plain pass would have left them."""
        self._move(None)
        self._weights = None
        self.buffers.restore()

    def _move(self, offset: Vector | None) -> None:
        if self._weights is not None:
            self._move_back()
        if offset is not None:
            if self._weights is None:
                self._weights = self.space.weights().copy()
            offset.add_to_weights()
        # an autocast region around the whole step would reuse its copies of the weights from the pass before
        torch.clear_autocast_cache()

    def _move_back(self) -> None:
        if self._weights is None:
            return
        for weights, saved in zip(self.space.weights().tensors(), self._weights.tensors(), strict=True):
            torch._foreach_copy_(cast("list[Tensor]", weights), cast("list[Tensor]", saved))

    def _take(self, loss: Any) -> Vector:
        if all(parameter.grad is None for parameter in self.space.parameters):
            raise NoGradientError(loss)
        if loss is None:
            raise TypeError("the closure returned None; it must return the loss")
        if not self.losses:
            if self.after_first is not None:
                self.after_first()
        else:
            self.buffers.require_all_seen(p for p in self.space.parameters if p.grad is not None)
        taken: set[int] = set()
        gradient = self.space.vector(lambda parameter: _own_gradient(parameter, taken))
        if self.unscale is not None:
            gradient = (self.unscale * gradient).collapse(into=gradient)
            self.finite = is_finite(gradient) if self.finite is None else self.finite & is_finite(gradient)
        return gradient


class Leftovers(AbstractContextManager["Leftovers"]):
    """Gradients from before the step, which the closure must clear.

    Looked at just before the first backward adds to them, in one parameter a block: still the same tensor, in the same
    version, means that nobody cleared it.
    """

    def __init__(self, space: Space) -> None:
        kept = (((p, p.grad) for p in block if p.grad is not None) for block in space.blocks)
        self.watched = [(p, gradient, _version(gradient)) for block in kept for p, gradient in islice(block, 1)]
        self.uncleared = False

    def __enter__(self) -> Leftovers:
        def look(parameter: Tensor, gradient: Tensor, version: int) -> Callable[[Tensor], None]:
            def hook(_: Tensor) -> None:
                self.uncleared |= parameter.grad is gradient and _version(gradient) == version

            return hook

        self.handles = [p.register_hook(look(p, g, v)) for p, g, v in self.watched]  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def require_cleared(self) -> None:
        for parameter, gradient, version in self.watched:
            # FSDP2 adds to the shard's gradient without calling hooks: there only a new tensor proves the clearing
            same = parameter.grad is gradient and (is_distributed(parameter) or _version(gradient) == version)
            self.uncleared |= same
        if self.uncleared:
            raise RuntimeError(
                "there were gradients before the step and the closure did not clear them. Begin the closure with "
                "optimizer.zero_grad(). To accumulate over micro-batches, loop over them inside the closure: gradients "
                "accumulated outside (Lightning's accumulate_grad_batches, Accelerate's accumulate) belong to one "
                "pass only"
            )


def _version(tensor: Tensor) -> int:
    return local(tensor)._version


def _own_gradient(parameter: Tensor, taken: set[int]) -> Tensor | None:
    """The parameter's gradient as a tensor that no later backward overwrites; `taken`: where those before it lie."""
    gradient = parameter.grad
    if gradient is None:
        return None
    if gradient.layout != torch.strided:
        raise TypeError(f"a gradient has layout {gradient.layout}; sparse gradients are not supported (sparse=False)")
    if gradient.is_complex():
        raise TypeError(
            f"a gradient is {gradient.dtype}; complex parameters are not supported. Keep torch.view_as_real of the "
            "weights as the parameter, and use torch.view_as_complex of it"
        )
    if is_distributed(gradient):
        parameter.grad = gradient = split_like(gradient, parameter)
        return gradient.detach()
    gradient = gradient.detach() if gradient.requires_grad else gradient
    # torch.autograd.grad gives one tensor to both terms of a sum, and one number to all of a sum's entries
    if gradient.data_ptr() in taken or is_expanded(gradient):
        parameter.grad = gradient = gradient.clone()
    if gradient.numel():
        taken.add(gradient.data_ptr())
    # DDP with gradient_as_bucket_view hands out views into its buckets and fills these again in the next pass
    return gradient.clone() if gradient._is_view() else gradient
