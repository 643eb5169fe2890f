"""Run the closure at the weights a formula asks for, and restore everything afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from mecam.optim._beside import SideBySide
from mecam.optim._buffers import Buffers, is_expanded
from mecam.optim._leftovers import Leftovers
from mecam.optim._noise import RandomState
from mecam.optim._shards import is_distributed, split_like
from mecam.optim.vector import Scalar, Space, Vector, is_finite

Closure = Callable[[], Any]
HOW_TO_STEP = """step() needs a closure, since it takes the gradient at several weights:

    def closure():
        optimizer.zero_grad()
        loss = loss_function(model(inputs), targets)
        loss.backward()
        return loss

    optimizer.step(closure)

Trainers without closures: mecam.integrations.transformers and mecam.integrations.fastai.

With a GradScaler: optimizer.step(closure, scaler=scaler). GradScaler.step(optimizer), which Lightning's 16-mixed and
Accelerate's fp16 call, cannot unscale the passes of a step: train in bf16, or call step yourself. In Lightning:

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        scaler = self.trainer.precision_plugin.scaler
        optimizer.optimizer.step(optimizer_closure, scaler=scaler)
        scaler.update()

In Accelerate: optimizer.optimizer.step(closure, scaler=accelerator.scaler); accelerator.scaler.update()"""


class VirtualDomain(Protocol):
    """An object that can be switched on around a pass."""

    def active(self) -> AbstractContextManager[Any]: ...


class GradAt(Protocol):
    """Compute grad f(theta + offset), on a virtual domain if one is given."""

    def __call__(self, offset: Vector | None = None, domain: VirtualDomain | None = None) -> Vector: ...


class NoGradientError(RuntimeError):
    """The closure gave no parameter a gradient; `loss` is what it returned."""

    def __init__(self, loss: Any) -> None:
        super().__init__(
            "no parameter of this optimizer has a gradient. "
            "Was loss.backward() called, and does the loss depend on these parameters?"
        )
        self.loss = loss


class Passes:
    """Call the closure for a formula. The first call is at theta; later calls leave nothing but their gradient."""

    def __init__(
        self,
        space: Space,
        closure: Closure,
        *,
        buffers: Buffers,
        shared_noise: bool = False,
        unscale: Callable[[], Scalar] | None = None,
        around: Callable[[], AbstractContextManager[Any]] | None = None,
        after_first: Callable[[], None] | None = None,
        record: bool = False,
        watch_every: bool = True,
        rounding: int | None = None,
        beside: SideBySide | None = None,
    ) -> None:
        self.space = space
        self.closure = closure
        self.buffers = buffers
        self.unscale = unscale
        self.around = around
        self.after_first = after_first
        self.record = record
        self.watch_every = watch_every  # gradient from before the step; False where closures clear by None
        self.rounding = rounding  # with stochastic rounding: a number of this step
        self.beside = beside  # in a capture: the perturbed passes do not wait for each other
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
        with self._moved(offset):
            with ExitStack() as stack:
                if domain is not None:
                    stack.enter_context(domain.active())
                if self.around is not None:
                    stack.enter_context(self.around())
                leftovers = stack.enter_context(Leftovers(self.space, every=self.watch_every)) if first else None
                stack.enter_context(self.buffers.first() if first else self.buffers.watched())
                if not first and self.noise is not None:
                    stack.enter_context(self.noise.replayed())
                with torch.enable_grad():
                    loss = self.closure()
            if leftovers is not None:
                leftovers.require_cleared(loss, HOW_TO_STEP)
                if leftovers.held:
                    self.watch_every = bool(leftovers.same)
            return self.take(loss)

    def restore(self) -> None:
        """Restore weights and buffers to what a plain pass leaves."""
        if self.beside is not None:
            self.beside.join()
        self.move(None)
        self._weights = None
        self.buffers.restore()

    @contextmanager
    def _moved(self, offset: Vector | None) -> Iterator[None]:
        """Run a pass at theta + offset."""
        if self.beside is None or not self.losses:
            self.move(offset)
            yield
            return
        with self.beside.at(offset, len(self.losses)):
            yield

    def move(self, offset: Vector | None) -> None:
        """Move the weights to theta + offset."""
        if self._weights is not None:
            for weights, saved in zip(self.space.weights().tensors(), self._weights.tensors(), strict=True):
                torch._foreach_copy_(cast("list[Tensor]", weights), cast("list[Tensor]", saved))
        if offset is not None:
            if self._weights is None:
                self._weights = self.space.weights().copy()
            offset.add_to_weights(None if self.rounding is None else 8 * self.rounding + len(self.losses))
        # an autocast region around the whole step would reuse its copies of the weights from the pass before
        torch.clear_autocast_cache()

    def take(self, loss: Any) -> Vector:
        """Return the gradient of the pass that has just run."""
        if all(parameter.grad is None for parameter in self.space.parameters):
            raise NoGradientError(loss)
        if loss is None:
            raise TypeError("the closure returned None; it must return the loss")
        if not self.losses and self.after_first is not None:
            self.after_first()
        gradient = self._own_gradients(copy=filled_again(self.space.kinds[0].device))
        if self.unscale is not None:
            gradient = (self.unscale() * gradient).collapse(into=gradient)
            self.finite = is_finite(gradient) if self.finite is None else self.finite & is_finite(gradient)
        self.losses.append(_kept_loss(loss))
        self.gradients = [*self.gradients, gradient] if self.record else [gradient]
        return gradient

    def _own_gradients(self, *, copy: bool) -> Vector:
        """Return the gradients as tensors that no later backward overwrites."""
        gradients = [parameter.grad for parameter in self.space.parameters]
        if not copy and _are_plain([gradient for gradient in gradients if gradient is not None]):
            each = iter(gradients)
            return Vector(self.space, [(1.0, [[next(each) for _ in block] for block in self.space.blocks])])
        taken: set[int] = set()
        return self.space.vector(lambda parameter: _own_gradient(parameter, taken, copy=copy))


def _are_plain(gradients: list[Tensor]) -> bool:
    """Return whether all are dense tensors with memory of their own: the usual case, in one loop."""
    for each in gradients:
        if type(each) is not Tensor or each.layout is not torch.strided or each.is_complex():
            return False
        if each.requires_grad or each._is_view() or 0 in each.stride():
            return False
    return len({each.data_ptr() for each in gradients}) == len(gradients)


def _kept_loss(loss: Any) -> Any:
    """Return the loss without its graph, copied if the next pass may overwrite its memory."""
    if not isinstance(loss, Tensor):
        return loss
    return loss.detach().clone() if filled_again(loss.device) else loss.detach()


def filled_again(device: torch.device) -> bool:
    """Return whether results may lie in a compiled CUDA graph's memory (mode="reduce-overhead")."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None or device.type != "cuda":
        return False
    index = torch.cuda.current_device() if device.index is None else device.index
    return trees.get_manager(index, create_if_none_exists=False) is not None


def _own_gradient(parameter: Tensor, taken: set[int], *, copy: bool) -> Tensor | None:
    """Return the gradient as a tensor that no later backward overwrites; `taken` holds earlier addresses."""
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
    return gradient.clone() if gradient._is_view() or copy else gradient
