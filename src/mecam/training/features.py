"""Features of a frozen backbone: computed once, kept on disk, and trained on in place of the images."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mecam import ranks
from mecam.data.augment import evaluate_transform
from mecam.data.domains import DomainSet
from mecam.data.open import cache_folder
from mecam.models.network import Network
from mecam.preprocessing import Preprocessing
from mecam.progress import Event, Progress, silent
from mecam.recipe import Recipe
from mecam.runs import write_atomic
from mecam.runs._tensors import pack, unpack
from mecam.storage.checksums import digest_blocks
from mecam.storage.files import make_folder
from mecam.training.build import build_network
from mecam.training.evaluate import batch_on, evaluating
from mecam.training.machine import Machine

VERSION = 1  # of the files; a change of how features are computed takes another


class FeatureSet:
    """A data set whose images are vectors (float32), the features of its images."""

    def __init__(self, data: DomainSet, features: Sequence[Tensor], fingerprint: str) -> None:
        self.data, self.features, self.fingerprint = data, list(features), fingerprint
        self.name, self.domains, self.classes, self.size = data.name, data.domains, data.classes, data.size
        self.labels, self.aspects, self.sample_name = data.labels, data.aspects, data.sample_name

    def images(self, domain: int, indices: Sequence[int] | NDArray[np.integer]) -> Tensor:
        """Return features (n, num_features) on the CPU."""
        return self.features[domain][torch.from_numpy(np.asarray(indices, dtype=np.int64))]


def freeze(
    network: Network, data: DomainSet, machine: Machine, *, backbone: str, progress: Progress = silent
) -> tuple[dict[str, Tensor], FeatureSet]:
    """Replace the featurizer by the features of all images; return its weights and the features.

    From then on the network is dropout and head, and takes features for images.
    """
    featurizer = network.featurizer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    weights = {name: tensor.detach().cpu() for name, tensor in featurizer.state_dict().items()}
    key = digest_of(weights, data, machine, backbone=backbone, preprocessing=network.preprocessing)
    features = FeatureSet(data, compute(network, data, machine, key, progress), key)
    network.featurizer, network.precision = nn.Identity(), None
    return weights, features


def has_features(recipe: Recipe, machine: Machine, data: DomainSet) -> bool:
    """Return whether the features of this recipe are in the cache; its weights must be pretrained or from a file."""
    network = build_network(recipe, len(data.classes))
    weights = dict(network.featurizer.state_dict())
    key = digest_of(weights, data, machine, backbone=recipe.backbone, preprocessing=network.preprocessing)
    return all(file.exists() for file in _files(data, key))


def digest_of(
    weights: dict[str, Tensor], data: DomainSet, machine: Machine, *, backbone: str, preprocessing: Preprocessing
) -> str:
    """Return a digest of all that features depend on."""
    facts = {
        "version": VERSION,
        "backbone": backbone,
        "preprocessing": preprocessing.to_dict(),
        "data": data.fingerprint,
        **({"size": data.size} if len(set(getattr(data, "sizes", ()))) > 1 else {}),
        "device": machine.device.type,
        "precision": machine.precision,
    }
    blocks = (tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for tensor in weights.values())
    return digest_blocks([json.dumps(facts, sort_keys=True).encode(), *blocks])


def compute(network: Network, data: DomainSet, machine: Machine, key: str, progress: Progress = silent) -> list[Tensor]:
    """Return the features of every domain, from the cache where it has them intact."""
    features: list[Tensor] = []
    computed = False
    counts = [len(data.labels(domain)) for domain in range(len(data.domains))]
    for domain, (file, count) in enumerate(zip(_files(data, key), counts, strict=True)):
        own = None
        if machine.writes:  # under torchrun the other processes wait for the first one's
            own = _read(file, key, count, network.num_features)
        if machine.writes and own is None:

            def report(done: int, before: int = sum(counts[:domain])) -> None:
                progress(Event("features", before + done, sum(counts), "images"))

            own, computed = features_of(network, data, domain, machine, report), True
            _write(file, own, key)
        features.append(ranks.from_first(own))
    if computed:
        progress(Event("features", kind="done"))
    return features


@torch.no_grad()
def features_of(
    network: Network, data: DomainSet, domain: int, machine: Machine, report: Callable[[int], None] = lambda _: None
) -> Tensor:
    """Return the features (images, num_features) of a domain before dropout, on the CPU."""
    size, count = batch_on(machine.device), len(data.labels(domain))
    parts = [torch.empty(0, network.num_features)]
    with evaluating(network):
        for start in range(0, count, size):
            report(start)
            chosen = np.arange(start, min(start + size, count))
            images, aspects = data.images(domain, chosen), torch.from_numpy(data.aspects(domain)[chosen])
            pixels = evaluate_transform(images.to(machine.device), network.preprocessing, aspects.to(machine.device))
            parts.append(network.pooled(pixels.contiguous(memory_format=torch.channels_last)).float().cpu())
    return torch.cat(parts)


def _files(data: DomainSet, key: str) -> list[Path]:
    """Return the file in the cache of each domain."""
    folder = cache_folder() / "features" / f"{data.name}-{key}"
    return [folder / f"{domain}.safetensors" for domain in range(len(data.domains))]


def _read(file: Path, key: str, count: int, width: int) -> Tensor | None:
    """Return the features in a file; None if they are missing, damaged or of something else."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        tensors, facts = unpack(file.read_bytes())
        features: Any = tensors["features"]
        if facts == {"key": key, "digest": _checksum(features)} and features.shape == (count, width):
            return features  # type: ignore[no-any-return]
    return None


def _write(file: Path, features: Tensor, key: str) -> None:
    """Write the features; no-op if the cache cannot be written."""
    with suppress(RuntimeError, OSError):
        make_folder(file.parent)
        write_atomic(file, pack({"features": features}, {"key": key, "digest": _checksum(features)}))


def _checksum(features: Tensor) -> str:
    return digest_blocks([features.contiguous().numpy().tobytes()])
