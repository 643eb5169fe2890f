"""Sample one batch of indices per source domain, with replacement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mecam.data.domains import DataError


class DomainSampler:
    """Sample batches of indices, uniformly from the training part of each source domain.

    Args:
        labels_per_source: the labels of all images of each source domain.
        indices: the training part of each source domain, as indices into its labels.
        batch: images per domain and step.
        generator: a CPU generator, the only source of randomness.
        balanced: draw a class first, uniformly over those in the training part, then an image of it.
    """

    def __init__(
        self,
        labels_per_source: Sequence[NDArray[np.integer]],
        indices: Sequence[NDArray[np.integer]],
        batch: int,
        generator: torch.Generator,
        balanced: bool = False,
    ) -> None:
        for number, part in enumerate(indices):
            if not len(part):
                raise DataError(
                    f"the training part of source domain {number} (of {len(indices)}, from 0) is empty; "
                    "add images to the domain or hold out less of it"
                )
        self.batch, self.balanced, self.generator = batch, balanced, generator
        self._parts = [_Part.of(labels, part) for labels, part in zip(labels_per_source, indices, strict=True)]

    def next(self) -> list[Tensor]:
        """Return the next batch of each source domain."""
        draw = self._balanced if self.balanced else self._uniform
        return [draw(part) for part in self._parts]

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])

    def _uniform(self, part: _Part) -> Tensor:
        return part.indices[torch.randint(len(part.indices), (self.batch,), generator=self.generator)]

    def _balanced(self, part: _Part) -> Tensor:
        label = torch.randint(len(part.sizes), (self.batch,), generator=self.generator)
        share = torch.rand(self.batch, generator=self.generator, dtype=torch.float64)
        within = (share * part.sizes[label]).long()  # share <= 1 - 2^-53: below the size
        return part.by_class[part.starts[label] + within]


def balanced_weights(
    labels_per_source: Sequence[NDArray[np.integer]], indices: Sequence[NDArray[np.integer]], classes: int
) -> Tensor:
    """Return class weights 1 / (k p), where p is the share of a class in uniform batches, and k classes have images.

    Then the expected weight of every class is 1 / k. Arguments as in `DomainSampler`; a class without images has 0.
    """
    counts = (
        np.bincount(np.asarray(labels)[part], minlength=classes) / len(part)
        for labels, part in zip(labels_per_source, indices, strict=True)
    )
    shares = np.mean(list(counts), axis=0)
    present = shares > 0
    weights = np.divide(1, present.sum() * shares, out=np.zeros(classes), where=present)
    return torch.from_numpy(weights).float()


@dataclass(frozen=True)
class _Part:
    """The training part of one domain, in its own order and sorted by class."""

    indices: Tensor
    by_class: Tensor
    starts: Tensor  # the first place of each class in by_class
    sizes: Tensor

    @staticmethod
    def of(labels: NDArray[np.integer], part: NDArray[np.integer]) -> _Part:
        indices = np.array(part, dtype=np.int64)
        own = np.asarray(labels)[indices]
        order = np.argsort(own, kind="stable")
        _, starts, sizes = np.unique(own[order], return_index=True, return_counts=True)
        return _Part(*map(torch.as_tensor, (indices, indices[order], starts, sizes)))
