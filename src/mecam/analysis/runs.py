"""The loss of a finished run as a function of its weights, on the images it was trained on or on those it was not."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
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
from mecam.data.splits import split as split_domain
from mecam.recipe import Recipe
from mecam.runs import RunError, find_run
from mecam.serving.model import Preprocessing, load_model
from mecam.training.build import own_settings, virtual_layers
from mecam.training.reopen import reopen
from mecam.virtual import VirtualDomain

if TYPE_CHECKING:
    from mecam.models.network import Network

Part = Literal["train", "validation", "target"]
PARTS: tuple[Part, ...] = ("train", "validation", "target")
# images at once: a second backward holds several times what a first one does; on a CPU 32 of 224 pixels, and more of
# smaller ones, to a limit (resnet8 at 32 pixels: 8.5 images a millisecond by 128, 6 by 32)
BATCH, BATCH_ON_CPU, MOST = 64, 32, 128


@dataclass(frozen=True, eq=False)
class Images:
    """Batches of un-augmented images and their labels, in the same order every time.

    None spans two domains, unless they are `mixed`: then each has its share of every domain, as in training.
    """

    data: DomainSet
    indices: dict[int, NDArray[np.int64]]  # by domain
    preprocessing: Preprocessing
    batch: int
    device: torch.device
    dtype: torch.dtype
    mixed: bool = False

    @property
    def count(self) -> int:
        return sum(map(len, self.indices.values()))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        look = self.preprocessing
        for parts in self._parts():
            images = torch.cat([self.data.images(domain, some) for domain, some in parts]).to(self.device)
            labels = np.concatenate([self.data.labels(domain)[some] for domain, some in parts])
            pixels = evaluate_transform(
                images, look.size, mean=look.mean, std=look.std, interpolation=look.interpolation
            ).to(self.dtype)
            yield pixels.contiguous(memory_format=_layout(self.device)), torch.from_numpy(labels).to(self.device)

    def _parts(self) -> Iterator[list[tuple[int, NDArray[np.int64]]]]:
        """Of each batch its domains, and which images of them."""
        if self.mixed:
            pieces = [np.array_split(indices, -(-self.count // self.batch)) for indices in self.indices.values()]
            for some in zip(*pieces, strict=True):
                yield list(zip(self.indices, some, strict=True))
            return
        for domain, indices in self.indices.items():
            for start in range(0, len(indices), self.batch):
                yield [(domain, indices[start : start + self.batch])]


def objective_of(
    path: Path | str,
    split: Part = "train",
    *,
    limit: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    batch: int | None = None,
    data: DomainSet | None = None,
    loss: Loss = cross_entropy,
    mixed: bool = False,
) -> Objective:
    """The mean loss of a run's selected weights.

    Args:
        path: the run's folder, or one that holds this run only.
        split: "train" for the training parts of the source domains, "validation" for their held-out parts, "target"
            for the part of the unseen domain that the run's accuracy is reported on.
        limit: at most so many images, drawn at random and the same in every call.
        batch: images at once. Only where predictions depend on batch mates (MTL, ARM) does f depend on it.
        data: the run's data, if it is open already.
        loss: another than cross-entropy, such as mecam.analysis.bounds.bounded_cross_entropy.
        mixed: whether a batch has images of every domain, as a virtual domain needs them; not for methods whose
            predictions depend on batch mates.
    """
    if split not in PARTS:
        raise ValueError(f"there is no split {split!r}; it must be one of {', '.join(PARTS)}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit} images; it must be at least 1")
    folder = find_run(path)
    if folder.is_done() and not folder.model_file.exists():
        raise RunError(f"the run in {folder.path} has no weights: {folder.model_file.name} is missing")
    device = torch.device(device)
    model = load_model(folder.path, device=device)
    recipe = Recipe(**folder.read_run()["recipe"])
    if split == "target" and recipe.target is None:
        raise RunError(f"the run in {folder.path} has no unseen domain; take the split train or validation")
    if data is None:  # whether it is the same data is told below
        data = reopen(folder.path, recipe)
    if model.classes != tuple(data.classes):
        raise RunError(f"the run in {folder.path} was trained on other classes than {data.name} has now")
    if folder.read_result().get("data") != data.fingerprint:
        warnings.warn(f"{data.name} is not as it was when the run in {folder.path} was trained", stacklevel=2)
    sources = source_domains(data, recipe.target)
    indices = {}
    for domain in range(len(data.domains)):
        if (domain in sources) == (split != "target"):
            parts = split_domain(len(data.labels(domain)), trial=recipe.seed, domain=domain, holdout=recipe.holdout)
            indices[domain] = parts.held_out if split == "validation" else parts.training
    if limit is not None:
        indices = _some(indices, limit)
    size = batch or (_for_cpu(model.preprocessing.size) if device.type == "cpu" else BATCH)
    images = Images(data, indices, model.preprocessing, size, device, dtype, mixed and not model.alone)
    if not images.count:
        raise RunError(f"the {split} split of the run in {folder.path} has no images (holdout={recipe.holdout})")
    model.network.to(device, dtype, memory_format=_layout(device))  # type: ignore[call-overload]
    return Objective(model.network, loss, images, count=images.count, name=split)


def virtual_domain_of(path: Path | str, objective: Objective) -> VirtualDomain | None:
    """The virtual domain that MeCAM has under this run's recipe, attached to the network of a `mixed` objective.

    None where the recipe has none or one that acts on pixels, and where batches are not mixed.
    """
    recipe = Recipe(**find_run(path).read_run()["recipe"])
    if recipe.virtual in ("none", "fourier") or not cast("Images", objective.batches).mixed:
        return None
    found = virtual.create(recipe.virtual, generator=torch.Generator().manual_seed(0), **own_settings(recipe))
    network = cast("Network", objective.model)
    return found.attach(network, virtual_layers(recipe, network.stages))


def _layout(device: torch.device) -> torch.memory_format:
    """On a GPU depthwise convolutions in float32 are slower if channels come last: Lite0's gradient by half.

    Networks without such convolutions were not compared.
    """
    return torch.channels_last if device.type == "cpu" else torch.contiguous_format


def _some(indices: dict[int, NDArray[np.int64]], limit: int) -> dict[int, NDArray[np.int64]]:
    """At most `limit` images; every image is as likely, and kept ones stay in order."""
    domains = np.concatenate([np.full(len(part), domain) for domain, part in indices.items()])
    kept = np.zeros(len(domains), dtype=bool)
    kept[np.random.default_rng(0).permutation(len(domains))[:limit]] = True
    return {domain: part[kept[domains == domain]] for domain, part in indices.items()}


def _for_cpu(size: int) -> int:
    return max(1, min(MOST, BATCH_ON_CPU * 224**2 // size**2))
