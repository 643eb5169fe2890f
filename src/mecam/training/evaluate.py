"""How a network does on every split of every domain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mecam.data.augment import evaluate_transform
from mecam.data.domains import DomainSet
from mecam.models.network import Network
from mecam.training.metrics import Metrics, measure

BATCH = 256


@torch.inference_mode()
def logits_of(
    network: Network,
    data: DomainSet,
    domain: int,
    indices: NDArray[np.int64],
    *,
    image_size: int,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[object]],
) -> Tensor:
    """The network's outputs on these images of a domain, in order, on the CPU."""
    was_training = network.training
    network.eval()
    normal = network.normalization
    outputs = []
    for start in range(0, len(indices), BATCH):
        images = data.images(domain, indices[start : start + BATCH]).to(device)
        with autocast():
            outputs.append(network(evaluate_transform(images, image_size, mean=normal.mean, std=normal.std)).float())
    network.train(was_training)
    return torch.cat(outputs).cpu()


def evaluate(
    network: Network,
    data: DomainSet,
    splits: Mapping[str, tuple[int, NDArray[np.int64]]],
    *,
    image_size: int,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[object]],
) -> dict[str, Metrics]:
    """The metrics of each split, by its name ("photo in", "photo out"); an empty split has none."""
    found = {}
    for name, (domain, indices) in splits.items():
        if len(indices):
            logits = logits_of(network, data, domain, indices, image_size=image_size, device=device, autocast=autocast)
            found[name] = measure(logits, torch.from_numpy(data.labels(domain)[indices]))
    return found
