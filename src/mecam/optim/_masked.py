"""Undo a step on the device, without a host sync."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mecam.optim.vector import Vector


def can_decide_on_device(base: Optimizer, stepped: Iterable[Tensor], device: torch.device) -> bool:
    """Whether `masked_step` can undo a step exactly: all that it changes exists already, as tensors on the device.

    Other libraries' optimizers count steps in Python, and torch's on the CPU unless capturable or fused.
    """
    if not type(base).__module__.startswith("torch.optim"):
        return False
    known = set(map(id, base.state)) | set(map(id, stepped))
    moving = [p for group in base.param_groups for p in group["params"] if p.grad is not None]
    return all(id(p) in known for p in moving) and all(t.device == device for t in _tensors(base))


def looks_for_itself(base: Optimizer) -> bool:
    """Whether the base's kernels (fused ones) take a device scalar that tells them to do nothing."""
    return bool(getattr(base, "_step_supports_amp_scaling", False))


@torch.no_grad()
def masked_step(base: Optimizer, apply: Tensor) -> None:
    """base.step() where the device scalar `apply` is True; parameters and state stay as they are where it is False."""
    if looks_for_itself(base):
        scaled: Any = base  # the door GradScaler uses: fused kernels read these two
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
    """After a step that was not taken: fused SGD made momentum for it, and left that uninitialised."""
    for parameter in [p for p in base.state if p not in known]:
        del base.state[parameter]


def _tensors(base: Optimizer) -> Iterator[Tensor]:
    """What a step of the optimizer may change."""
    for group in base.param_groups:
        yield from (p for p in group["params"] if p.grad is not None)
    for state in base.state.values():
        values = state.values() if isinstance(state, dict) else (state,)  # MADGRAD's k is no parameter's
        yield from (value for value in values if isinstance(value, Tensor))


def unless_skipped(v: Vector, taken: bool | Tensor, otherwise: Vector | None = None) -> Vector:
    """v; where the device decided against the step, `otherwise` or zero."""
    if not isinstance(taken, Tensor):
        return v
    new, old = dict(v.items()), {} if otherwise is None else dict(otherwise.items())

    def part(parameter: Tensor) -> Tensor | None:
        value, former = new[parameter], old.get(parameter)
        return None if value is None else torch.where(taken, value, 0 if former is None else former)

    return v.space.vector(part)
