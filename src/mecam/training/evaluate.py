"""How a network does on every split of every domain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mecam import ranks
from mecam.data.augment import evaluate_transform
from mecam.data.domains import DomainSet
from mecam.image_sizes import Interpolation
from mecam.models.network import Normalization
from mecam.training.metrics import Metrics, measure
from mecam.training.resident import resident

# images at once, in the data's order, so that predictions that depend on batch mates are always the same; more than
# these leave a CPU's cache (lite0 at 224 pixels: 34 images a second by 8, 19 by 64)
BATCH, BATCH_ON_CPU = 256, 32


Forward = Callable[[Tensor], Tensor]  # from stored images (uint8) to logits


@dataclass(frozen=True)
class Look:
    """How a network sees stored images."""

    image_size: int
    normalization: Normalization
    interpolation: Interpolation = "bilinear"

    def logits(self, network: nn.Module, images: Tensor) -> Tensor:
        normal = self.normalization
        pixels = evaluate_transform(
            images, self.image_size, mean=normal.mean, std=normal.std, interpolation=self.interpolation
        )
        return network(pixels.contiguous(memory_format=torch.channels_last)).float()  # type: ignore[no-any-return]


@torch.inference_mode()
def logits_of(
    network: nn.Module, data: DomainSet, domain: int, indices: NDArray[np.int64], look: Look, *, device: torch.device
) -> Tensor:
    """The network's outputs on these images of a domain, in order, on the CPU; processes share the batches."""
    size = BATCH_ON_CPU if device.type == "cpu" else BATCH
    parts = []
    with evaluating(network):
        for number, start in enumerate(range(0, len(indices), size)):
            batch = indices[start : start + size]
            if number % ranks.count() == ranks.rank():
                parts.append(look.logits(network, _images(data, domain, batch, device)))
            else:
                parts.append(torch.zeros(len(batch), len(data.classes), device=device))
    return ranks.total(torch.cat(parts)).cpu()


@torch.no_grad()
def logits_together(
    network: nn.Module,
    data: DomainSet,
    splits: Sequence[tuple[int, NDArray[np.int64]]],
    forward: Forward,
    *,
    device: torch.device,
) -> list[Tensor]:
    """The outputs on each of the splits, by a forward that wants batches of one size: filled across splits."""
    domains = np.concatenate([np.full(len(indices), domain) for domain, indices in splits])
    places = np.concatenate([indices for _, indices in splits])
    parts = []
    with evaluating(network):
        for start in range(0, len(places), BATCH):
            chosen = slice(start, start + BATCH)
            bounds = np.flatnonzero(np.diff(domains[chosen])) + 1
            runs = zip(np.split(domains[chosen], bounds), np.split(places[chosen], bounds), strict=True)
            images = torch.cat([_images(data, int(domain[0]), own, device) for domain, own in runs])
            count = len(images)
            if count < BATCH:
                images = torch.cat([images, images[-1:].expand(BATCH - count, -1, -1, -1)])
            parts.append(forward(images)[:count].clone())
    return list(torch.split(torch.cat(parts).cpu(), [len(indices) for _, indices in splits]))


def evaluate(
    network: nn.Module,
    data: DomainSet,
    splits: Mapping[str, tuple[int, NDArray[np.int64]]],
    look: Look,
    *,
    device: torch.device,
    forward: Forward | None = None,
    keep: dict[str, Tensor] | None = None,
) -> dict[str, Metrics]:
    """The metrics of each split, by its name ("photo in", "photo out"); an empty split has none.

    Args:
        forward: the network's, if one is faster at batches of BATCH images; its outputs must not depend on batch mates.
        keep: is given the logits of each split.
    """
    filled = {name: part for name, part in splits.items() if len(part[1])}
    if forward is not None and filled:
        logits = logits_together(network, data, list(filled.values()), forward, device=device)
    else:
        logits = [logits_of(network, data, domain, part, look, device=device) for domain, part in filled.values()]
    found = dict(zip(filled, logits, strict=True))
    if keep is not None:
        keep.update(found)
    return {
        name: measure(found[name], torch.from_numpy(data.labels(domain)[part]))
        for name, (domain, part) in filled.items()
    }


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)


def _images(data: DomainSet, domain: int, indices: NDArray[np.int64], device: torch.device) -> Tensor:
    there = resident(data, device)
    if there is None:
        return data.images(domain, indices).to(device)
    return there.take(domain, torch.from_numpy(indices).pin_memory().to(device, non_blocking=True))
