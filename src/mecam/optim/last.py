"""Losses, norms and cosines of the passes of the last step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mecam.optim.vector import Vector, cosine, norm


@dataclass(frozen=True)
class LastStep:
    """Losses, gradient norms and cosines of a step's passes, as device scalars; cosines[i, j] with i < j."""

    losses: tuple[Tensor, ...]
    norms: tuple[Tensor, ...]
    cosines: dict[tuple[int, int], Tensor]

    @staticmethod
    def of(losses: Sequence[Any], gradients: Sequence[Vector]) -> LastStep:
        pairs = [(i, j) for j in range(len(gradients)) for i in range(j)]
        return LastStep(
            losses=tuple(as_number(loss) for loss in losses),
            norms=tuple(norm(gradient) for gradient in gradients),
            cosines={(i, j): cosine(gradients[i], gradients[j]) for i, j in pairs},
        )


def as_number(loss: Any) -> Tensor:
    """Return the loss as a tensor, from a loss or a dict with the key "loss"."""
    value = loss.get("loss") if isinstance(loss, Mapping) else loss
    if not isinstance(value, (Tensor, int, float)):
        raise TypeError(
            f"the closure returned a {type(loss).__name__}; the losses of the passes are read here (track=True), so "
            "it must return the loss, or a dict with the loss under 'loss'"
        )
    return torch.as_tensor(value).detach()
