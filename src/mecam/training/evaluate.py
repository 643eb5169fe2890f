"""How a network does on every split of every domain."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mecam import ranks
from mecam.data.augment import evaluate_transform
from mecam.data.domains import DomainSet
from mecam.models.network import Normalization
from mecam.training.metrics import Metrics, measure

# images at once, in the data's order, so that predictions that depend on batch mates are always the same; more than
# these leave a CPU's cache (lite0 at 224 pixels: 34 images a second by 8, 19 by 64)
BATCH, BATCH_ON_CPU = 256, 32


@torch.inference_mode()
def logits_of(
    network: nn.Module,
    data: DomainSet,
    domain: int,
    indices: NDArray[np.int64],
    *,
    image_size: int,
    normalization: Normalization,
    device: torch.device,
) -> Tensor:
    """The network's outputs on these images of a domain, in order, on the CPU; processes share the batches."""
    was_training = network.training
    network.eval()
    size = BATCH_ON_CPU if device.type == "cpu" else BATCH
    parts = []
    for number, start in enumerate(range(0, len(indices), size)):
        batch = indices[start : start + size]
        if number % ranks.count() == ranks.rank():
            images = data.images(domain, batch).to(device)
            pixels = evaluate_transform(images, image_size, mean=normalization.mean, std=normalization.std)
            parts.append(network(pixels.contiguous(memory_format=torch.channels_last)).float())
        else:
            parts.append(torch.zeros(len(batch), len(data.classes), device=device))
    network.train(was_training)
    return ranks.total(torch.cat(parts)).cpu()


def evaluate(
    network: nn.Module,
    data: DomainSet,
    splits: Mapping[str, tuple[int, NDArray[np.int64]]],
    *,
    image_size: int,
    normalization: Normalization,
    device: torch.device,
    keep: dict[str, Tensor] | None = None,
) -> dict[str, Metrics]:
    """The metrics of each split, by its name ("photo in", "photo out"); an empty split has none.

    `keep` is given the logits of each split.
    """
    found = {}
    for name, (domain, indices) in splits.items():
        if len(indices):
            logits = logits_of(
                network, data, domain, indices, image_size=image_size, normalization=normalization, device=device
            )
            if keep is not None:
                keep[name] = logits
            found[name] = measure(logits, torch.from_numpy(data.labels(domain)[indices]))
    return found
