"""first_step and second_step: two calls in place of a closure."""

from __future__ import annotations

from typing import cast

import torch

from mecam.optim._passes import VirtualDomain
from mecam.optim._wrapper import hooked
from mecam.optim.sharpness import SharpnessAware
from mecam.optim.vector import Vector

UNKNOWN = torch.tensor(torch.nan)  # the loss, which the loop keeps to itself


class TwoPasses(SharpnessAware):
    """An optimizer with two passes in every step.

    `step(closure)` runs both. A loop that was written for first_step and second_step, as those for davda54/sam and
    pytorch_optimizer are, works as well:

        loss_function(model(inputs), targets).backward()
        optimizer.first_step(zero_grad=True)
        loss_function(model(inputs), targets).backward()
        optimizer.second_step(zero_grad=True)

    Between the two the weights are perturbed, also if the loop fails there; another first_step restores them and raises
    an error. With `model=`, buffers change in the first pass alone, and a frozen parameter that changes in the second
    is an error: update it only where `first_pass` is True. Without, both change in both passes. Step hooks run around
    second_step.
    """

    @torch.no_grad()
    def first_step(self, zero_grad: bool = False) -> None:  # noqa: ARG002 - others' signature
        """Perturb the weights by the gradients that the loop has computed at theta.

        Args:
            zero_grad: Ignored; accepted for compatibility. Gradients are always cleared.
        """
        if self._running is not None:
            self._restore(self._running)
            raise RuntimeError(
                "first_step() was called twice, without second_step() between. The weights are as before the first; "
                "compute the gradients anew"
            )
        if self.local_perturbation or self.shared_noise or self._wants_hessian or self.varies:
            raise RuntimeError(
                "first_step() does not support local_perturbation, shared_noise, start, every or AdaHessian; use "
                "step(closure)"
            )
        passes = self._begin(lambda: None, None)  # the loop calls instead
        try:
            first = passes.take(UNKNOWN)
            passes.move(self._offset(first))
            passes.buffers.save_model()
        except BaseException:
            self._restore(passes)
            raise
        self.zero_grad()

    @hooked
    @torch.no_grad()
    def second_step(self, zero_grad: bool = False) -> None:
        """Move the weights back and take the base optimizer's step, by the gradients at the perturbed weights.

        Args:
            zero_grad: clear the gradients afterwards.
        """
        passes = self._running
        if passes is None:
            raise RuntimeError("second_step() comes after first_step()")
        first = passes.gradients[-1]
        try:
            second = passes.take(UNKNOWN)
            passes.buffers.require_saved()
        finally:
            self._restore(passes)
        known = iter((first, second))
        self._end(passes, self.gradient(lambda *_: next(known)))
        self._opt_called = True  # as a scheduler's wrapper of step() does
        if zero_grad:
            self.zero_grad()

    def _offset(self, first: Vector) -> Vector:
        """Return the offset at which the formula takes its second gradient."""
        known = iter((first,))

        def grad_at(offset: Vector | None = None, domain: VirtualDomain | None = None) -> Vector:  # noqa: ARG001
            for gradient in known:
                return gradient
            raise _Reached(cast("Vector", offset))

        try:
            self.gradient(grad_at)
        except _Reached as reached:
            return reached.offset
        raise TypeError(f"{type(self).__name__} took one pass; first_step() serves formulas with two")


class _Reached(Exception):
    def __init__(self, offset: Vector) -> None:
        super().__init__()
        self.offset = offset
