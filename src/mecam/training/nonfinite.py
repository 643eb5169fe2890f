"""Numbers gone bad: noticed before they reach the weights, told with the step and the images, kept to look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mecam.methods.base import Batch
from mecam.optim import SharpnessAware
from mecam.optim._masked import masked_step
from mecam.runs import RunError

FOLDER = "nonfinite"
SHOWN = 8  # names in the message; all are in the folder


class NonFiniteError(RunError, FloatingPointError):
    """A loss or gradient that is NaN or infinite, where the recipe asks to stop for one."""


@dataclass(eq=False)
class BadStep(Exception):
    """What is known of such a step where it was taken."""

    step: int
    names: Sequence[str]  # of the batch's images
    batch: Batch
    reason: str


def who_looks(optimizer: torch.optim.Optimizer, device: torch.device) -> Literal["itself", "device", "host"]:
    """Who sees to it that a step is finite: the optimizer, the device without being waited for, or Python."""
    if isinstance(optimizer, SharpnessAware):
        return "itself"
    own = type(optimizer).__module__.startswith("torch.optim")
    return "device" if device.type == "cuda" and own else "host"


def is_finite(loss: Tensor, gradients: Iterable[Tensor | None]) -> Tensor:
    """Whether the loss and all gradients are, on the device."""
    present = [gradient for gradient in gradients if gradient is not None and gradient.numel()]
    largest = torch._foreach_norm(present, torch.inf) if present else []
    return torch.stack([loss.detach().float(), *(norm.float() for norm in largest)]).isfinite().all()


def require_finite(loss: Tensor, gradients: Sequence[Tensor | None]) -> None:
    """FloatingPointError if the loss or a gradient is not finite."""
    if not is_finite(loss, gradients):
        what = "the loss" if not loss.isfinite() else "a gradient"
        raise FloatingPointError(f"{what} is not finite (the loss is {float(loss):g})")


def step_if_finite(
    optimizer: torch.optim.Optimizer, closure: Callable[[], Tensor], trained: nn.Module, skipped: Tensor
) -> Tensor:
    """A step of torch's optimizers that the device takes, or leaves out and counts; nobody waits for it."""
    loss = closure()
    finite = is_finite(loss, [parameter.grad for parameter in trained.parameters()])
    masked_step(optimizer, finite)
    skipped.add_(~finite)
    return loss


def finite_buffers(module: nn.Module) -> dict[str, Tensor]:
    """A copy of the buffers that a pass changes, such as batch-norm statistics that are not frozen, to go back to."""
    return {
        name: buffer.clone()
        for prefix, child in module.named_modules()
        if child.training
        for name, buffer in child.named_buffers(prefix, recurse=False)
        if buffer.is_floating_point()
    }


def put_back(module: nn.Module, before: Mapping[str, Tensor]) -> None:
    """Put buffers back that are no longer finite; nobody waits for the device."""
    for name, buffer in module.named_buffers():
        if name in before:
            buffer.copy_(torch.where(buffer.isfinite().all(), buffer, before[name]))


def keep(folder: Path, bad: BadStep, state: dict[str, Any]) -> NonFiniteError:
    """Write what there is to look at below the run's folder, and the error that says so."""
    from mecam.runs import checkpoint

    place = folder / FOLDER
    batch = {"images": bad.batch.images, "labels": bad.batch.labels}
    content = {"step": bad.step, "reason": bad.reason, "names": list(bad.names), "batch": batch, "state": state}
    checkpoint.save(place, content)
    shown = ", ".join(bad.names[:SHOWN])
    more = f" and {len(bad.names) - SHOWN} more" if len(bad.names) > SHOWN else ""
    return NonFiniteError(
        f"step {bad.step} of {folder}: {bad.reason}. The batch: {shown}{more}. It is in {place}, with all names and "
        "the state of the run, for mecam.runs.checkpoint.load. Look at the images, lower the learning rate, or leave "
        "such steps out with --set nonfinite=skip"
    )
