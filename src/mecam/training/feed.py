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
from mecam.optim.graphs import Captured
from mecam.training.resident import resident


@dataclass(frozen=True)
class State:
    """Positions of the random streams."""

    sampler: dict[str, Any]  # the same in every process
    noise: Tensor  # the augmentation's


@dataclass(frozen=True)
class Drawn:
    """A batch before augmentation, and the state of the sampler after it."""

    indices: Tensor  # domain after domain
    images: Tensor | None  # None: they lie on the device
    sampler: dict[str, Any]


class Feed:
    """An endless stream of batches, one part of each from every source domain.

    On a GPU with room the images lie on it as uint8 and nothing is loaded in training: gathering and augmenting them is
    a captured graph. Without room a thread prepares the next batch in pinned memory while this one trains.
    """

    def __init__(
        self,
        data: DomainSet,
        sources: Sequence[int],
        sampler: DomainSampler,
        augmentation: Augmentation | None,  # None: features, which are used as they are
        *,
        device: torch.device,
        seed: int,
        capture: bool = True,
        class_weights: Tensor | None = None,
    ) -> None:
        self.data, self.sources, self.sampler, self.augmentation = data, list(sources), sampler, augmentation
        self.device = device
        self.class_weights = None if class_weights is None else class_weights.to(device)
        self.generator = torch.Generator(device).manual_seed(seed)
        self.resident = resident(data, device)
        self.labels = [torch.from_numpy(np.array(data.labels(d))) for d in self.sources]
        self.aspects = [torch.from_numpy(np.array(data.aspects(d))) for d in self.sources]
        self.state = State(sampler.state_dict(), self.generator.get_state())
        self._thread = ThreadPoolExecutor(1) if device.type == "cuda" and self.resident is None else None
        self._ahead: Future[Drawn] | None = None
        captured = capture and self.resident is not None
        self._look_up = Captured(self._from_memory, [self.generator]) if captured else self._from_memory

    def next(self, step: int) -> Batch:
        """Return the batch for this step; on a GPU the next call may overwrite it."""
        drawn = self._draw() if self._thread is None else self._prefetched(self._thread)
        images, labels = (
            self._from_host(drawn) if drawn.images is not None else self._look_up(self._there(drawn.indices))
        )
        self.state = State(drawn.sampler, self.generator.get_state())
        return Batch(images, labels, len(self.sources), step, self.class_weights)

    def names(self, state: State) -> list[str]:
        """Return the names of the images that this process draws next in this state."""
        if self._ahead is not None:
            self._ahead.result()  # its thread draws from the same sampler
        now = self.sampler.state_dict()
        self.sampler.load_state_dict(state.sampler)
        parts = list(zip(self.sources, self._share(), strict=True))
        self.sampler.load_state_dict(now)
        return [self.data.sample_name(domain, int(index)) for domain, part in parts for index in part]

    def load(self, sampler: dict[str, Any], noise: Tensor | None) -> None:
        """Resume from the parts of a `State`; without `noise`, the augmentation's stream stays where it is."""
        if self._ahead is not None:
            self._ahead.result()
            self._ahead = None
        self.sampler.load_state_dict(sampler)
        self.generator.set_state(self.state.noise if noise is None else noise)
        self.state = State(sampler, self.generator.get_state())

    def _prefetched(self, thread: ThreadPoolExecutor) -> Drawn:
        ready = self._draw() if self._ahead is None else self._ahead.result()
        self._ahead = thread.submit(self._draw)
        return ready

    def _draw(self) -> Drawn:
        parts, state = self._share(), self.sampler.state_dict()
        if self.resident is not None:
            return Drawn(torch.cat(parts), None, state)
        images = torch.cat([self.data.images(d, part.numpy()) for d, part in zip(self.sources, parts, strict=True)])
        return Drawn(torch.cat(parts), images if self._thread is None else images.pin_memory(), state)

    def _share(self) -> list[Tensor]:
        """Draw the next batch; return this process's share of each domain."""
        return [batch.chunk(ranks.count())[ranks.rank()] for batch in self.sampler.next()]

    def _from_host(self, drawn: Drawn) -> tuple[Tensor, Tensor]:
        """Return augmented images and labels of a batch that was loaded on the host."""
        assert drawn.images is not None
        parts = drawn.indices.chunk(len(self.sources))
        labels, aspects = (
            torch.cat([of[part] for of, part in zip(known, parts, strict=True)])
            for known in (self.labels, self.aspects)
        )
        return self._augmented(self._there(drawn.images), self._there(aspects)), self._there(labels)

    def _from_memory(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return augmented images and labels of a batch that is on the device."""
        assert self.resident is not None
        stored, parts = self.resident, list(zip(self.sources, indices.chunk(len(self.sources)), strict=True))
        images, aspects = map(torch.cat, zip(*(stored.take(d, part) for d, part in parts), strict=True))
        labels = torch.cat([stored.labels[d][part] for d, part in parts])
        return self._augmented(images, aspects), labels

    def _augmented(self, images: Tensor, aspects: Tensor) -> Tensor:
        if self.augmentation is None:
            return images
        pixels = self.augmentation(images, aspects, generator=self.generator)
        return pixels.contiguous(memory_format=torch.channels_last)

    def _there(self, values: Tensor) -> Tensor:
        return (values.pin_memory() if self.device.type == "cuda" else values).to(self.device, non_blocking=True)
