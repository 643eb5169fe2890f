"""Batches for training: sampled on the CPU, resident on the device where they fit, augmented there."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mecam import ranks
from mecam.data.augment import Augmentation
from mecam.data.domains import DomainSet
from mecam.data.sampling import DomainSampler
from mecam.methods.base import Batch

RESIDENT_SHARE = 0.4  # of the device's free memory that images may take


@dataclass(frozen=True)
class Drawn:
    """A batch before augmentation, and the sampler's state behind it."""

    images: Tensor
    labels: Tensor
    aspects: Tensor
    sampler: dict[str, Any]


class Feed:
    """An endless stream of batches, one part of each from every source domain.

    On a GPU with room the images lie on it as uint8 and nothing is loaded in training; without room a thread prepares
    the next batch in pinned memory while this one trains.
    """

    def __init__(
        self,
        data: DomainSet,
        sources: Sequence[int],
        sampler: DomainSampler,
        augmentation: Augmentation,
        *,
        device: torch.device,
        seed: int,
    ) -> None:
        self.data, self.sources, self.sampler, self.augmentation = data, list(sources), sampler, augmentation
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)
        self.labels = [torch.from_numpy(np.array(data.labels(d))) for d in self.sources]
        self.aspects = [torch.from_numpy(np.array(data.aspects(d))) for d in self.sources]
        self.resident = self._load() if device.type == "cuda" and self._fits() else None
        self._state = sampler.state_dict()
        self._thread = ThreadPoolExecutor(1) if device.type == "cuda" and self.resident is None else None
        self._ahead: Future[Drawn] | None = None

    def next(self, step: int) -> Batch:
        """The batch for this step."""
        drawn = self._draw() if self._thread is None else self._prefetched(self._thread)
        self._state = drawn.sampler
        images, labels, aspects = (
            t.to(self.device, non_blocking=True) for t in (drawn.images, drawn.labels, drawn.aspects)
        )
        pixels = self.augmentation(images, aspects, generator=self.generator)
        return Batch(pixels.contiguous(memory_format=torch.channels_last), labels, len(self.sources), step)

    def state_dict(self) -> dict[str, Any]:
        """Where the sampler stands after the batch handed out last; the same in every process."""
        return self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._ahead is not None:
            self._ahead.result()
            self._ahead = None
        self.sampler.load_state_dict(state)
        self._state = state

    def _prefetched(self, thread: ThreadPoolExecutor) -> Drawn:
        ready = self._draw() if self._ahead is None else self._ahead.result()
        self._ahead = thread.submit(self._draw)
        return ready

    def _draw(self) -> Drawn:
        indices = [batch.chunk(ranks.count())[ranks.rank()] for batch in self.sampler.next()]  # this process's share
        state = self.sampler.state_dict()
        if self.resident is not None:
            images = torch.cat(
                [all_of.index_select(0, i.to(self.device)) for all_of, i in zip(self.resident, indices, strict=True)]
            )
        else:
            images = torch.cat([self.data.images(d, i.numpy()) for d, i in zip(self.sources, indices, strict=True)])
        labels = torch.cat([part[i] for part, i in zip(self.labels, indices, strict=True)])
        aspects = torch.cat([part[i] for part, i in zip(self.aspects, indices, strict=True)])
        if self._thread is not None:
            images = images.pin_memory()
        return Drawn(images, labels, aspects, state)

    def _fits(self) -> bool:
        height, width = self.data.size
        needed = 3 * height * width * sum(len(labels) for labels in self.labels)
        return needed < RESIDENT_SHARE * torch.cuda.mem_get_info(self.device)[0]

    def _load(self) -> list[Tensor]:
        return [self.data.images(d, np.arange(len(self.data.labels(d)))).to(self.device) for d in self.sources]
