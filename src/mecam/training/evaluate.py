"""Evaluate a network on splits of domains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mecam import ranks
from mecam.data.augment import evaluate_transform
from mecam.data.domains import DomainSet
from mecam.preprocessing import Preprocessing
from mecam.splits import Split
from mecam.training.compiling import is_compiled
from mecam.training.metrics import Metrics, measure
from mecam.training.resident import resident

# images per batch, in the data's order, so that predictions that depend on batch mates are always the same; larger
# batches leave a CPU's cache
BATCH, BATCH_ON_CPU = 256, 32
Forward = Callable[[Tensor, Tensor], Tensor]  # from stored images (uint8) or features, and aspects, to logits


def batch_on(device: torch.device) -> int:
    """Return the images per batch of an evaluation."""
    return BATCH_ON_CPU if device.type == "cpu" else BATCH


def forward_stored(network: nn.Module, preprocessing: Preprocessing, images: Tensor, aspects: Tensor) -> Tensor:
    """Return the logits of stored images (uint8) and their original aspects, or of features."""
    if images.is_floating_point():
        return network(images).float()  # type: ignore[no-any-return]
    pixels = evaluate_transform(images, preprocessing, aspects)
    return network(pixels.contiguous(memory_format=torch.channels_last)).float()  # type: ignore[no-any-return]


@torch.inference_mode()
def logits_of(
    network: nn.Module,
    data: DomainSet,
    domain: int,
    indices: NDArray[np.int64],
    preprocessing: Preprocessing,
    *,
    device: torch.device,
) -> Tensor:
    """Return the logits of these images of a domain, in order, on the CPU; processes share the batches."""
    size, parts = batch_on(device), []
    with evaluating(network):
        for number, start in enumerate(range(0, len(indices), size)):
            batch = indices[start : start + size]
            if number % ranks.count() == ranks.rank():
                parts.append(forward_stored(network, preprocessing, *_images(data, domain, batch, device)))
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
    """Return the logits of each split, by a forward for batches of one size; a batch may span splits."""
    domains = np.concatenate([np.full(len(indices), domain) for domain, indices in splits])
    places = np.concatenate([indices for _, indices in splits])
    parts = []
    with evaluating(network):
        for start in range(0, len(places), BATCH):
            chosen = slice(start, start + BATCH)
            bounds = np.flatnonzero(np.diff(domains[chosen])) + 1
            runs = zip(np.split(domains[chosen], bounds), np.split(places[chosen], bounds), strict=True)
            stored = zip(*(_images(data, int(domain[0]), own, device) for domain, own in runs), strict=True)
            images, aspects = (_filled(torch.cat(each)) for each in stored)
            parts.append(forward(images, aspects)[: len(domains[chosen])].clone())
    return list(torch.split(torch.cat(parts).cpu(), [len(indices) for _, indices in splits]))


def evaluate(
    network: nn.Module,
    data: DomainSet,
    splits: Mapping[Split, NDArray[np.int64]],
    preprocessing: Preprocessing,
    *,
    device: torch.device,
    forward: Forward | None = None,
    keep: dict[Split, Tensor] | None = None,
) -> dict[Split, Metrics]:
    """Return the metrics of each split; an empty split has none.

    Args:
        forward: a faster forward for batches of BATCH images; its outputs must not depend on batch mates.
        keep: filled with the logits of each split.
    """
    filled = {split: indices for split, indices in splits.items() if len(indices)}
    parts = [(data.domains.index(split.domain), indices) for split, indices in filled.items()]
    if forward is not None and filled:
        logits = logits_together(network, data, parts, forward, device=device)
    else:
        logits = [logits_of(network, data, domain, indices, preprocessing, device=device) for domain, indices in parts]
    if keep is not None:
        keep.update(zip(filled, logits, strict=True))
    labels = (torch.from_numpy(data.labels(domain)[indices]) for domain, indices in parts)
    return {split: measure(*pair) for split, *pair in zip(filled, logits, labels, strict=True)}


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    was_training = network.training
    network.eval()
    # compiled kernels for evaluations would be compiled anew, and not have the bits of a loaded model
    try:
        with torch.compiler.set_stance("force_eager") if is_compiled(network) else nullcontext():
            yield
    finally:
        network.train(was_training)


def _filled(rows: Tensor) -> Tensor:
    """Return BATCH rows: the last one repeats."""
    return torch.cat([rows, rows[-1:].expand(BATCH - len(rows), *rows.shape[1:])])


def _images(data: DomainSet, domain: int, indices: NDArray[np.int64], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return images and their aspects."""
    stored = resident(data, device)
    if stored is None:
        return data.images(domain, indices).to(device), torch.from_numpy(data.aspects(domain)[indices]).to(device)
    return stored.take(domain, torch.from_numpy(indices).pin_memory().to(device, non_blocking=True))
