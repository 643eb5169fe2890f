"""Estimate novelty and thresholds for predictions in a new domain, from left-out domains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import normalize

from mecam.data.domains import DomainSet, source_domains
from mecam.data.splits import split_domains
from mecam.data.store import for_sources
from mecam.models.network import Network
from mecam.recipe import recipe_of
from mecam.runs import RunFolder
from mecam.serving import load_model
from mecam.serving.confidence import BATCH, USUAL, Confidence, Space
from mecam.splits import Part, Split
from mecam.training.features import compute, digest_of, features_of
from mecam.training.machine import Machine

RANK = 256  # directions at most
MOST = 5000  # images of a part, which are enough for a mean and a covariance
IMAGES_PER_DIRECTION = 5  # at least


@dataclass(frozen=True)
class Outputs:
    """Features and predicted classes of the images of one part of a domain, with their labels."""

    features: Tensor
    predicted: Tensor
    labels: Tensor


def estimate(final: RunFolder, left_out: Mapping[str, RunFolder], data: DomainSet, machine: Machine) -> Confidence:
    """Return novelty and thresholds of the final model, from the runs that leave out each domain in turn."""
    whole = outputs(final, data, machine)
    space = fit_space(training_parts(whole, data.domains), len(data.classes))
    usual = torch.cat([distances(space, one) for one in held_out(whole, data.domains)])
    seen, unseen = [], []
    for target, run in left_out.items():
        own = outputs(run, data, machine)
        sources = [name for name in data.domains if name != target]
        without = fit_space(training_parts(own, sources), len(data.classes))
        seen += [shift(without, batch) for one in held_out(own, sources) for batch in batches(one)]
        unseen.append(shift(without, own[Split(target, Part.TRAINING)]))
    predictions = [run.read_predictions() for run in left_out.values()]
    return Confidence(
        space=space,
        domains=tuple(data.domains),
        usual=float(usual.quantile(USUAL)),
        shifted=between(seen, unseen),
        probabilities=torch.cat([own["confidence"] for own in predictions]),
        right=torch.cat([own["predicted"] == own["label"] for own in predictions]),
    )


def outputs(run: RunFolder, data: DomainSet, machine: Machine) -> dict[Split, Outputs]:
    """Return the outputs of a run's model for every part that has images, for its first ones, which are random."""
    recipe = recipe_of(run.path)
    data = for_sources(data, source_domains(data, recipe.target))
    network = cast("Network", load_model(run.path, device=machine.device).network)
    network.precision = machine.autocast
    if recipe.trainable == "head":
        weights = {name: tensor.cpu() for name, tensor in network.featurizer.state_dict().items()}
        key = digest_of(weights, data, machine, backbone=recipe.backbone, preprocessing=network.preprocessing)
        features = compute(network, data, machine, key)
    else:
        features = [features_of(network, data, domain, machine) for domain in range(len(data.domains))]
    by_part = {}
    for part, indices in split_domains(data, trial=recipe.seed, holdout=recipe.holdout).items():
        domain = data.domains.index(part.domain)
        chosen = indices[:MOST]
        own = features[domain][torch.from_numpy(chosen)]
        with torch.inference_mode():
            predicted = network.head(own.to(machine.device)).argmax(1).cpu()
        if len(own):
            by_part[part] = Outputs(own, predicted, torch.from_numpy(data.labels(domain)[chosen]))
    return by_part


def training_parts(of: Mapping[Split, Outputs], domains: Sequence[str]) -> list[Outputs]:
    return [of[Split(name, Part.TRAINING)] for name in domains]


def held_out(of: Mapping[Split, Outputs], domains: Sequence[str]) -> list[Outputs]:
    return [of[split] for name in domains if (split := Split(name, Part.HELD_OUT)) in of]


def batches(part: Outputs) -> list[Outputs]:
    """Return the part as a whole, and the images of each class where there are enough: a batch may have one class."""
    chosen = [part.labels == label for label in range(int(part.labels.max()) + 1)]
    own = [Outputs(part.features[one], part.predicted[one], part.labels[one]) for one in chosen if one.sum() >= BATCH]
    return [part, *own]


def fit_space(parts: Sequence[Outputs], classes: int) -> Space:
    """Return the means of each domain and class, and the directions that whiten the residuals from them.

    A class that a domain does not have gets the mean of the domain. Only the directions of largest variance are kept.
    """
    means, residuals = [], []
    for part in parts:
        features = normalize(part.features.double())
        own = features.mean(0).repeat(classes, 1)
        for label in range(classes):
            if (chosen := part.labels == label).any():
                own[label] = features[chosen].mean(0)
        means.append(own)
        residuals.append(features - own[part.labels])
    directions = whitening(torch.cat(residuals))
    return Space(directions, torch.stack(means) @ directions)


def whitening(residuals: Tensor) -> Tensor:
    """Return directions (features, rank) in which these residuals (images, features) have unit covariance."""
    images, features = residuals.shape
    gram = images < features  # the same eigenvalues, and a smaller matrix
    values, vectors = torch.linalg.eigh((residuals @ residuals.T if gram else residuals.T @ residuals) / images)
    rank = max(1, min(RANK, images // IMAGES_PER_DIRECTION, int((values > 1e-9 * values[-1]).sum())))
    values, vectors = values[-rank:], vectors[:, -rank:]
    if gram:
        vectors = residuals.T @ vectors / (values * images).sqrt()
    return cast("Tensor", vectors / values.sqrt())


def distances(space: Space, of: Outputs) -> Tensor:
    return space.distances(space.project(of.features), of.predicted)


def shift(space: Space, of: Outputs) -> float:
    counts = torch.bincount(of.predicted, minlength=space.means.shape[1])
    return space.shift(space.project(of.features).sum(0), counts)[0]


def between(seen: Sequence[float], unseen: Sequence[float]) -> float | None:
    """Return the middle between two groups of shifts; None where they overlap."""
    return (max(seen) + min(unseen)) / 2 if max(seen) < min(unseen) else None
