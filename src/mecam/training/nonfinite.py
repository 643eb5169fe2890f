"""Detect, report and save non-finite steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from mecam.methods.base import Batch
from mecam.runs import RunError, RunFolder
from mecam.training.feed import Feed, State

Unread = tuple[int, State, Tensor]  # step, the feed before it, and the count of skipped steps on the device

FOLDER = "nonfinite"
SHOWN = 8  # names in the message; all are in the folder
LOWER = "Training diverged: lower the learning rate"


class NonFiniteError(RunError, FloatingPointError):
    """A gradient or an output of the network that is NaN or infinite, where the recipe asks to stop for one."""


@dataclass(eq=False)
class BadStep(Exception):
    """A step whose gradient is not finite."""

    step: int
    names: Sequence[str]  # the batch's images
    batch: Batch
    reason: str


def require_none_skipped(unread: Sequence[Unread], feed: Feed) -> None:
    """Read the counts of skipped steps from the device; raise BadStep for the first such step."""
    counts = torch.stack([count for _, _, count in unread]).tolist() if unread else []
    for (step, before, _), count in zip(unread, counts, strict=True):
        if count:
            names = feed.names(before)
            feed.load(before.sampler, before.noise)
            reason = "the gradient was not finite; that step was not taken, and later ones may have been"
            raise BadStep(step, names, feed.next(step), reason)


def require_finite_outputs(splits: Mapping[str, Mapping[str, Any]], weights: str) -> None:
    """Raise an error that names the splits with outputs that are not finite: their loss is NaN."""
    bad = [name for name, metrics in splits.items() if math.isnan(metrics["loss"])]
    if bad:
        raise NonFiniteError(
            f"{weights}: outputs of the network are not finite (NaN or infinity) on {', '.join(bad)}. {LOWER}"
        )


def copy_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Copy the buffers that a pass changes, such as batch-norm statistics that are not frozen."""
    return {
        name: buffer.clone()
        for prefix, child in module.named_modules()
        if child.training
        for name, buffer in child.named_buffers(prefix, recurse=False)
        if buffer.is_floating_point()
    }


def restore_buffers(module: nn.Module, before: Mapping[str, Tensor]) -> None:
    """Restore buffers that are no longer finite, without a host sync."""
    for name, buffer in module.named_buffers():
        if name in before:
            buffer.copy_(torch.where(buffer.isfinite().all(), buffer, before[name]))


def finite_or(new: Any, old: Any) -> Any:
    """Return a method's new running state, or the old one if a tensor of the new one is not finite.

    The device chooses, without a host sync. The host chooses if the two differ in anything but the values of tensors.
    """
    (leaves, shape), (former, old_shape) = tree_flatten(new), tree_flatten(old)
    checks = [leaf.isfinite().all() for leaf in leaves if isinstance(leaf, Tensor)]
    if not checks:
        return new
    finite = torch.stack(checks).all()
    if shape != old_shape or not all(map(_interchangeable, leaves, former)):
        return new if finite else old
    pairs = zip(leaves, former, strict=True)
    return tree_unflatten(
        [torch.where(finite, *pair) if isinstance(pair[0], Tensor) else pair[0] for pair in pairs], shape
    )


def _interchangeable(new: Any, old: Any) -> bool:
    if isinstance(new, Tensor) and isinstance(old, Tensor):
        return (new.shape, new.dtype, new.device) == (old.shape, old.dtype, old.device)
    return type(new) is type(old) and bool(new == old)


def step_error(folder: RunFolder, bad: BadStep, state: dict[str, Any]) -> NonFiniteError:
    """Save the step's batch and the state of the run in the run's folder; return the error that reports it."""
    from mecam.runs import checkpoint

    place = folder.path / FOLDER
    batch = {"images": bad.batch.images, "labels": bad.batch.labels}
    content = {"step": bad.step, "reason": bad.reason, "names": list(bad.names), "batch": batch, "state": state}
    checkpoint.save(place, content, folder.writer)
    shown = ", ".join(bad.names[:SHOWN])
    more = f" and {len(bad.names) - SHOWN} more" if len(bad.names) > SHOWN else ""
    return NonFiniteError(
        f"step {bad.step} of {folder.path}: {bad.reason}. The batch: {shown}{more}. It is in {place}, with all names "
        "and the state of the run, for mecam.runs.checkpoint.load. Look at the images, lower the learning rate, or "
        "leave such steps out with --set nonfinite=skip"
    )
