"""The running mean of a model's weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


class WeightMean:
    """Average state dicts: m <- m + share * (w - m), with share = 1/n for the plain mean.

    Floating tensors, buffers included, are averaged in float32 or better: batch-norm statistics of averaged weights are
    closer to the average of the statistics than to the last ones. Of integer tensors, such as batch norm's count of
    batches, the last is kept.
    """

    def __init__(self) -> None:
        self.count = 0
        self.values: dict[str, Tensor] = {}
        self.dtypes: dict[str, torch.dtype] = {}

    @torch.no_grad()
    def add(self, weights: Mapping[str, Tensor], share: float | None = None) -> None:
        """Add one set of weights."""
        self.count += 1
        if self.count == 1:
            self.dtypes = {name: value.dtype for name, value in weights.items()}
            self.values = {name: value.to(_wide(value), copy=True) for name, value in weights.items()}
            return
        if weights.keys() != self.values.keys():
            odd = ", ".join(sorted(weights.keys() ^ self.values.keys()))
            raise ValueError(f"the model is not the one whose weights were averaged so far: {odd} came or went")
        means, new = [], []
        for name, value in weights.items():
            if not _is_averaged(value):
                self.values[name] = value.clone()
                continue
            mean = self.values[name] = self.values[name].to(value.device)  # on the CPU after a resume
            means.append(mean)
            new.append(value.to(mean.dtype))
        torch._foreach_lerp_(means, new, 1 / self.count if share is None else share)

    def add_mean(self, other: WeightMean) -> None:
        """Add another mean as one set of weights."""
        self.add(other.values)
        self.dtypes = dict(other.dtypes)

    def weights(self) -> dict[str, Tensor]:
        """Return a copy of the mean in the weights' own dtypes."""
        return {name: value.to(self.dtypes[name], copy=True) for name, value in self.values.items()}

    def mapped(self, function: Callable[[Tensor], Tensor]) -> WeightMean:
        """Return the same mean with a function applied to its tensors."""
        other = WeightMean()
        other.count, other.dtypes = self.count, dict(self.dtypes)
        other.values = {name: function(value) for name, value in self.values.items()}
        return other

    def state_dict(self) -> dict[str, Any]:
        dtypes = {name: str(dtype).removeprefix("torch.") for name, dtype in self.dtypes.items()}
        return {"count": self.count, "values": dict(self.values), "dtypes": dtypes}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> WeightMean:
        mean = cls()
        mean.count = state["count"]
        mean.values = {name: value.clone() for name, value in state["values"].items()}
        mean.dtypes = {name: getattr(torch, dtype) for name, dtype in state["dtypes"].items()}
        return mean


def _is_averaged(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _wide(value: Tensor) -> torch.dtype:
    return torch.promote_types(value.dtype, torch.float32) if _is_averaged(value) else value.dtype
