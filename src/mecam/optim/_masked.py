"""Undo a step on the device, without a host sync."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mecam.optim.vector import Vector


def counts_on_device(base: Optimizer) -> bool:
    """Whether the optimizer can count its steps on the device. Those of other libraries count in Python."""
    return type(base).__module__.startswith("torch.optim")


def can_decide_on_device(base: Optimizer, stepped: Iterable[Tensor], device: torch.device) -> bool:
    """Return whether `masked_step` can undo a step: everything it changes is already a tensor on the device.

    torch's optimizers count on the CPU unless capturable or fused.
    """
    if not counts_on_device(base):
        return False
    known = set(map(id, base.state)) | set(map(id, stepped))
    moving = [p for group in base.param_groups for p in group["params"] if p.grad is not None]
    return all(id(p) in known for p in moving) and all(t.device == device for t in _tensors(base))


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
    """Remove the state that a skipped step created: fused SGD leaves its momentum uninitialised."""
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
