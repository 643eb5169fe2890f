"""Apply a combined gradient with the base optimizer, or undo it on the device, without a host sync."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mecam.optim._options import Nonfinite
from mecam.optim._shards import is_distributed, local, mean_over
from mecam.optim.last import as_number
from mecam.optim.vector import Space, Vector, is_finite, norm


class Update:
    """A combined gradient, ready for the base optimizer.

    Args:
        space: the parameters.
        gradient: what the formula gave, as one list of tensors that may be written to.
        shift: an offset added to the weights after the base optimizer's step.
        hessian: the Hessian diagonal of every parameter, for AdaHessian.
    """

    def __init__(
        self, space: Space, gradient: Vector, shift: Vector | None, hessian: dict[Tensor, Tensor] | None
    ) -> None:
        self.space, self.gradient, self.shift, self.hessian = space, gradient, shift, hessian

    def is_finite(self) -> Tensor:
        """Return whether all values are finite, as a device scalar on which all ranks agree."""
        return self._if_the_rest_is(is_finite(self.gradient))

    def spoil_unless(self, finite: Tensor) -> None:
        """Set the gradient to NaN if a pass overflowed: a scaler checks the combined gradient only."""
        self.scale(torch.where(self._if_the_rest_is(finite), 1.0, torch.nan))

    def average(self, group: Any) -> None:
        """Average over ranks, in one all-reduce."""
        vectors = [self.gradient] if self.shift is None else [self.gradient, self.shift]
        parts = [part for vector in vectors for _, part in vector.items()]
        means = iter(mean_over(parts, self.space.parameters * len(vectors), group))
        averaged = [Vector(self.space, [(1.0, [[next(means) for _ in b] for b in self.space.blocks])]) for _ in vectors]
        self.gradient, self.shift = averaged[0], averaged[1] if len(averaged) > 1 else None

    def clip(self, limit: float) -> None:
        self.scale((limit / (norm(self.gradient) + 1e-6)).clamp(max=1.0))

    def scale(self, factor: Tensor) -> None:
        self.gradient = (factor * self.gradient).collapse(into=self.gradient)

    def write(self) -> None:
        """Write the gradient to `parameter.grad`."""
        for parameter, part in self.gradient.items():
            held = parameter.grad
            if held is part:
                continue
            if part is None or not (is_distributed(parameter) or (held is not None and held._is_view())):
                parameter.grad = part
                continue
            if held is None:
                held = parameter.grad = torch.empty_like(parameter, requires_grad=False)
            local(held).copy_(part)

    def step(self, base: Optimizer, scaler: torch.amp.GradScaler | None = None) -> None:
        extra: dict[str, Any] = {} if self.hessian is None else {"hessian": list(self.hessian.values())}
        if scaler is None:
            base.step(**extra)
        else:
            scaler.step(base, **extra)

    def step_if(self, finite: Tensor, base: Optimizer, stepped: dict[Tensor, None]) -> bool | Tensor:
        """Step if the device scalar is True; return whether, as a bool or a device scalar.

        `stepped` remembers the parameters that the base stepped on and keeps no state for: a step that makes state can
        only be taken or left as a whole.
        """
        if finite.device.type != "cpu" and can_decide_on_device(base, stepped, finite.device):
            masked_step(base, finite)
            return finite
        if finite:
            self.step(base)
            moved = (p for p in self.space.parameters if p.grad is not None)
            stepped.update(dict.fromkeys(p for p in moved if p not in base.state))
        return bool(finite)

    def take(
        self,
        base: Optimizer,
        nonfinite: Nonfinite,
        losses: Sequence[Any],
        stepped: dict[Tensor, None],
    ) -> bool | Tensor:
        """Step the base optimizer; return whether the step was taken, as a bool or a device scalar."""
        if nonfinite == "ignore":
            self.write()
            self.step(base)
            return True
        finite = self.is_finite()
        if nonfinite == "skip":
            self.write()
            return self.step_if(finite, base, stepped)
        ahead = looks_for_itself(base)  # then the verdict is awaited with the step under way
        if not ahead:
            _require(finite, losses)
        self.write()
        if not ahead:
            self.step(base)
            return True
        known = set(base.state)
        masked_step(base, finite)
        if not finite:
            drop_new_state(base, known)
            _require(finite, losses)
        return True

    def take_scaled(self, base: Optimizer, scaler: torch.amp.GradScaler, scale: Tensor) -> bool:
        """Step the base optimizer through the scaler, which checks for overflows itself."""
        self.scale(scale)
        overflow = ~self.is_finite()
        self.write()
        known = set(base.state)
        self.step(base, scaler)
        if not overflow:
            return True
        drop_new_state(base, known)
        return False

    def _if_the_rest_is(self, finite: Tensor) -> Tensor:
        """Return `finite`, False if the shift or the Hessian diagonal is not finite."""
        if self.shift is not None:
            finite = finite & is_finite(self.shift)
        if self.hessian is not None:
            finite = finite & is_finite(self.space.vector(self.hessian.__getitem__))
        return finite


def _require(finite: Tensor, losses: Sequence[Any]) -> None:
    if not finite:
        seen = ", ".join(_shown(loss) for loss in losses)
        raise FloatingPointError(
            f"the combined gradient is not finite (losses of the passes: {seen}); the step was not taken and the "
            "weights are as before it. Look at the batch, lower the learning rate, or pass nonfinite='skip'"
        )


def _shown(loss: Any) -> str:
    """Format a loss. A closure may return something else, which must not fail here."""
    try:
        return f"{float(as_number(loss)):g}"
    except (TypeError, ValueError, RuntimeError):
        return f"a {type(loss).__name__}"


def scale_of(scaler: torch.amp.GradScaler, device: torch.device) -> Tensor:
    """Return the scale by which the closure multiplied its loss."""
    if getattr(scaler, "_scale", device) is None:  # never used; torch's scaler.step() is an error then as well
        raise RuntimeError(
            "the closure did not use the scaler. Call scaler.scale(loss).backward() in it, or leave out scaler="
        )
    return scaler.scale(torch.ones((), device=device))


def counts_on_device(base: Optimizer) -> bool:
    """Whether the optimizer can count its steps on the device. Those of other libraries count in Python."""
    return type(base).__module__.startswith("torch.optim")


def can_decide_on_device(base: Optimizer, stepped: Iterable[Tensor], device: torch.device) -> bool:
    """Return whether `masked_step` can undo a step: everything it changes is already a tensor on the device.

    torch's optimizers count on the CPU unless capturable or fused.
    """
    if not counts_on_device(base):
        return False
    known = {*map(id, base.state), *map(id, stepped)}
    if any(id(p) not in known for group in base.param_groups for p in group["params"] if p.grad is not None):
        return False
    return looks_for_itself(base) or all(t.device == device for t in _tensors(base))


def looks_for_itself(base: Optimizer) -> bool:
    """Return whether the base's (fused) kernels take a device scalar that turns a step into a no-op."""
    return bool(getattr(base, "_step_supports_amp_scaling", False))


@torch.no_grad()
def masked_step(base: Optimizer, apply: Tensor) -> None:
    """Call base.step() if the device scalar `apply` is True; keep parameters and state if it is False."""
    if looks_for_itself(base):
        scaled: Any = base  # as GradScaler does: fused kernels read these two
        scaled.grad_scale, scaled.found_inf = None, (~apply).float()
        try:
            base.step()
        finally:
            del scaled.grad_scale, scaled.found_inf
        return
    before = [(t, t.clone()) for t in _tensors(base)]
    base.step()
    for tensor, old in before:
        tensor.copy_(torch.where(apply, tensor, old))


def drop_new_state(base: Optimizer, known: set[Tensor]) -> None:
    """Remove the state that a skipped step created: fused SGD leaves its momentum uninitialized."""
    for parameter in [p for p in base.state if p not in known]:
        del base.state[parameter]


def _tensors(base: Optimizer) -> Iterator[Tensor]:
    """Yield the tensors that a step may change."""
    for group in base.param_groups:
        yield from (p for p in group["params"] if p.grad is not None)
    for state in base.state.values():
        values = state.values() if isinstance(state, dict) else (state,)  # MADGRAD's k is no parameter's
        yield from (value for value in values if isinstance(value, Tensor))


def unless_skipped(v: Vector, taken: bool | Tensor, otherwise: Vector | None = None) -> Vector:
    """Return v, or `otherwise` (default zero) if the device skipped the step."""
    if not isinstance(taken, Tensor):
        return v
    new, old = dict(v.items()), {} if otherwise is None else dict(otherwise.items())

    def part(parameter: Tensor) -> Tensor | None:
        value, former = new[parameter], old.get(parameter)
        return None if value is None else torch.where(taken, value, 0 if former is None else former)

    return v.space.vector(part)
