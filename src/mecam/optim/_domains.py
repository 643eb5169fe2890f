"""Optimizers that treat the source domains one by one: their closures hand over the loss of each domain."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from mecam.optim._options import in_process_group, outside
from mecam.optim.sharpness import SharpnessAware

Losses = Tensor | Sequence[Callable[[], Tensor]]


class ByDomain(SharpnessAware):
    """An optimizer whose closure asks it what to differentiate:

        def closure():
            optimizer.zero_grad()
            loss = optimizer.over_domains([partial(loss_of, images, labels) for images, labels in batches])
            loss.backward()
            return loss

    A closure without `over_domains` counts as one domain.
    """

    one_at_a_time: ClassVar[bool] = False  # each pass needs the loss of one domain, and not of all
    example_loss = "optimizer.over_domains([partial(loss_of, images, labels) for images, labels in batches])"
    transient = (*SharpnessAware.transient, "_domains")
    _domains: int = 0  # seen by the last call of `over_domains`

    def over_domains(self, losses: Losses) -> Tensor:
        """Return the loss to differentiate in this pass, from the losses of the domains.

        Args:
            losses: a vector with the mean loss of each domain, or a function per domain that computes it.
        """
        self._domains = len(losses)
        if not self._domains or (isinstance(losses, Tensor) and losses.dim() != 1):
            got = f"a tensor of shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else "none"
            raise ValueError(
                f"{type(self).__name__}: over_domains needs one loss per domain, got {got}; give a vector of losses or "
                "a list of functions that return a loss"
            )
        return self._combine(losses)

    @abstractmethod
    def _combine(self, losses: Losses) -> Tensor:
        """Return the loss to differentiate in this pass."""

    @property
    def capturable(self) -> Literal["steps", "passes", "nothing"]:
        what = super().capturable
        return "nothing" if what == "passes" else what  # one graph would repeat one pass's choice

    def _require_domains(self) -> None:
        """Warn, once, of a closure that did not hand over its domains. Call it after the first pass."""
        if self._domains:
            return
        self._domains = 1
        name = type(self).__name__
        warnings.warn(
            f"{name}: the closure did not call optimizer.over_domains, so all of its data counts as one domain. Hand "
            "over the loss of each domain: loss = optimizer.over_domains(losses); loss.backward()",
            stacklevel=outside(),
        )


def evaluated(losses: Losses) -> Tensor:
    """Return the losses of all domains as a vector."""
    return losses if isinstance(losses, Tensor) else torch.stack([loss() for loss in losses])


def over_ranks(value: Tensor, model: Any) -> Tensor:
    """Return the mean over the ranks of a data-parallel run: DDP's group, or the default one."""
    if not in_process_group():
        return value
    group = getattr(model, "process_group", None)
    mean = value / torch.distributed.get_world_size(group)
    torch.distributed.all_reduce(mean, group=group)
    return mean
