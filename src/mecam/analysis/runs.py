"""The loss of a finished run as a function of its weights, on training, validation or target images."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from mecam import virtual
from mecam.analysis.objective import Loss, Objective
from mecam.data.augment import evaluate_transform
from mecam.data.domains import DomainSet, source_domains
from mecam.data.splits import split_domains
from mecam.data.store import for_sources
from mecam.preprocessing import Preprocessing
from mecam.recipe import names_in, recipe_of
from mecam.runs import RunError, find_run
from mecam.serving.model import load_model
from mecam.splits import Part, Split
from mecam.training.build import own_settings, virtual_layers
from mecam.training.reopen import reopen
from mecam.virtual import VirtualDomain

if TYPE_CHECKING:
    from mecam.models.network import Network

Subset = Literal["train", "validation", "target"]
SUBSETS: tuple[Subset, ...] = ("train", "validation", "target")
# images per batch: a second backward takes several times the memory of a first; on a CPU 32 images of 224 pixels, and
# up to 128 smaller ones (resnet8 at 32 pixels: 8.5 images per millisecond by 128, 6 by 32)
BATCH, BATCH_ON_CPU, MOST = 64, 32, 128


@dataclass(frozen=True, eq=False)
class Images:
    """Batches of un-augmented images and their labels, in the same order every time."""

    data: DomainSet
    batches: Sequence[Mapping[int, NDArray[np.int64]]]  # indices by domain
    preprocessing: Preprocessing
    device: torch.device
    dtype: torch.dtype
    mixed: bool  # whether each batch has its share of every domain, as in training, or images of one

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.batches:
            images = torch.cat([self.data.images(domain, some) for domain, some in batch.items()]).to(self.device)
            labels, aspects = (
                torch.from_numpy(np.concatenate([of(domain)[some] for domain, some in batch.items()])).to(self.device)
                for of in (self.data.labels, self.data.aspects)
            )
            pixels = evaluate_transform(images, self.preprocessing, aspects).to(self.dtype)
            yield pixels.contiguous(memory_format=_layout(self.device)), labels


def objective_of(
    path: Path | str,
    split: Subset = "train",
    *,
    limit: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    batch: int | None = None,
    data: DomainSet | Path | str | None = None,
    loss: Loss = cross_entropy,
    mixed: bool = False,
) -> Objective:
    """Return the mean loss of a run as a function of its weights, at the selected ones.

    Args:
        path: the run's folder, or one that holds this run only.
        split: "train" for the training parts of the source domains, "validation" for their held-out parts, "target"
            for the part of the unseen domain that the run's accuracy is reported on.
        limit: use a fixed random subset of at most this many images.
        batch: images per batch. f depends on it only where predictions depend on batch mates (MTL, ARM).
        data: the run's data, open already or as a path. Default: those that the run names, if they were used here.
        loss: the mean over a batch, in place of cross-entropy.
        mixed: whether a batch has images of every domain, as a virtual domain needs them; not for methods whose
            predictions depend on batch mates.
    """
    if split not in SUBSETS:
        raise ValueError(f"there is no split {split!r}; it must be one of {', '.join(SUBSETS)}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit} images; it must be at least 1")
    folder = find_run(path)
    if not folder.is_done():
        raise RunError(f"the run in {folder.path} is not finished; run its mecam train command again to resume it")
    if not folder.model_file.exists():
        raise RunError(f"the run in {folder.path} has no weights: {folder.model_file.name} is missing")
    device = torch.device(device)
    model = load_model(folder.path, device=device)
    recipe = recipe_of(folder.path)
    if split == "target" and recipe.target is None:
        raise RunError(f"the run in {folder.path} has no unseen domain; take the split train or validation")
    if data is None or isinstance(data, (Path, str)):  # a change is reported below
        data = reopen(folder.path, recipe, data)
    if model.classes != tuple(data.classes):
        raise RunError(f"the run in {folder.path} was trained on other classes than {data.name} has now")
    if folder.read_result().get("data") != data.fingerprint:
        warnings.warn(f"{data.name} is not as it was when the run in {folder.path} was trained", stacklevel=2)
    part = Part.HELD_OUT if split == "validation" else Part.TRAINING
    splits = split_domains(data, trial=recipe.seed, holdout=recipe.holdout)
    sources = source_domains(data, recipe.target, names_in(recipe.sources))
    indices = {
        domain: splits[Split(name, part)]
        for domain, name in enumerate(data.domains)
        if (name == recipe.target if split == "target" else domain in sources)
    }
    if limit is not None:
        indices = _some(indices, limit)
    fits_cpu = max(1, min(MOST, BATCH_ON_CPU * 224**2 // model.preprocessing.size**2))
    size = batch or (fits_cpu if device.type == "cpu" else BATCH)
    count, mixed = sum(map(len, indices.values())), mixed and not model.alone
    if not count:
        raise RunError(f"the {split} split of the run in {folder.path} has no images (holdout={recipe.holdout})")
    data = for_sources(data, sources)
    images = Images(data, _batches(indices, size, mixed=mixed), model.preprocessing, device, dtype, mixed)
    model.network.to(device, dtype, memory_format=_layout(device))  # type: ignore[call-overload]
    return Objective(model.network, loss, images, count=count, name=split)


def virtual_domain_of(path: Path | str, objective: Objective) -> VirtualDomain | None:
    """Return the virtual domain of this run's recipe, attached to the network of a `mixed` objective.

    None where the recipe has none or one that acts on pixels, and where batches are not mixed.
    """
    recipe = recipe_of(find_run(path).path)
    if recipe.virtual in ("none", "fourier") or not cast("Images", objective.batches).mixed:
        return None
    domain = virtual.create(recipe.virtual, generator=torch.Generator().manual_seed(0), **own_settings(recipe))
    network = cast("Network", objective.model)
    return domain.attach(network, virtual_layers(recipe, network.stages))


def _layout(device: torch.device) -> torch.memory_format:
    # on a GPU Lite0's depthwise convolutions in float32 take half as long again with channels last
    return torch.channels_last if device.type == "cpu" else torch.contiguous_format


def _some(indices: dict[int, NDArray[np.int64]], limit: int) -> dict[int, NDArray[np.int64]]:
    """Return a fixed random subset of at most `limit` images, in order."""
    domains = np.concatenate([np.full(len(part), domain) for domain, part in indices.items()])
    kept = np.zeros(len(domains), dtype=bool)
    kept[np.random.default_rng(0).permutation(len(domains))[:limit]] = True
    return {domain: part[kept[domains == domain]] for domain, part in indices.items()}


def _batches(indices: dict[int, NDArray[np.int64]], size: int, *, mixed: bool) -> list[dict[int, NDArray[np.int64]]]:
    """Cut the images of the domains into batches."""
    if mixed:
        count = -(-sum(map(len, indices.values())) // size)
        parts = [np.array_split(own, count) for own in indices.values()]
        return [dict(zip(indices, some, strict=True)) for some in zip(*parts, strict=True)]
    return [{domain: own[at : at + size]} for domain, own in indices.items() for at in range(0, len(own), size)]
