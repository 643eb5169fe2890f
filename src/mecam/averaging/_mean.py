"""The running mean of a model's weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class WeightMean:
    """A mean over state dicts: m <- m + share * (w - m), share = 1/n for the plain mean.

    Floating tensors are averaged in float32 or better, buffers too: batch-norm statistics follow the weights, so those
    of averaged weights lie nearer to the average of the statistics than to the last ones. Of all others, such as
    batch norm's count of batches, the last is kept: a mean of counts or masks means nothing.
    """

    def __init__(self) -> None:
        self.count = 0
        self.values: dict[str, Tensor] = {}
        self.dtypes: dict[str, torch.dtype] = {}

    @torch.no_grad()
    def add(self, weights: Mapping[str, Tensor], share: float | None = None) -> None:
        """Take in one more set of weights."""
        self.count += 1
        if self.count == 1:
            self.dtypes = {name: value.dtype for name, value in weights.items()}
            self.values = {name: value.to(_wide(value), copy=True) for name, value in weights.items()}
            return
        if weights.keys() != self.values.keys():
            odd = ", ".join(sorted(weights.keys() ^ self.values.keys()))
            raise ValueError(f"the model is not the one whose weights were averaged so far: {odd} came or went")
        means, news = [], []
        for name, value in weights.items():
            if not _is_averaged(value):
                self.values[name] = value.clone()
                continue
            mean = self.values[name] = self.values[name].to(value.device)  # after a resume it lies on the CPU
            means.append(mean)
            news.append(value.to(mean.dtype))
        torch._foreach_lerp_(means, news, 1 / self.count if share is None else share)

    def add_mean(self, other: WeightMean) -> None:
        """Take in another mean as one set of weights."""
        self.add(other.values)
        self.dtypes = dict(other.dtypes)

    def weights(self) -> dict[str, Tensor]:
        """The mean in the weights' own dtypes, as a copy."""
        return {name: value.to(self.dtypes[name], copy=True) for name, value in self.values.items()}

    def on_cpu(self) -> WeightMean:
        """The same mean on the CPU; a copy if it was elsewhere."""
        return self._with({name: value.cpu() for name, value in self.values.items()})

    def copy(self) -> WeightMean:
        return self._with({name: value.clone() for name, value in self.values.items()})

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

    def _with(self, values: dict[str, Tensor]) -> WeightMean:
        other = WeightMean()
        other.count, other.values, other.dtypes = self.count, values, dict(self.dtypes)
        return other


def _is_averaged(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _wide(value: Tensor) -> torch.dtype:
    return torch.promote_types(value.dtype, torch.float32) if _is_averaged(value) else value.dtype
