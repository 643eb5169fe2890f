"""Train a linear classifier on frozen features of PACS, leaving out each domain in turn.

    python benchmarks/pacs_probe.py --weights resnet50_imagenet_v1.safetensors --device cuda

The features of all images are computed once, without augmentation. For each target and seed, with the protocol's
splits, logistic regression is trained on the training parts of the sources. The L2 penalty is the one with the highest
mean source validation accuracy. The reported accuracy is that on the target's training part, as in tables. PACS is
searched in $MECAM_DATA.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from machine import commit, describe, versions
from mecam.data.domains import DomainSet
from mecam.data.open import open_data
from mecam.data.splits import Indices, split
from mecam.models import Network, create
from mecam.runs import write_atomic
from mecam.splits import Part
from mecam.training.evaluate import logits_of

OUT = Path(__file__).parent / "results" / "pacs_resnet50_probe.json"
PENALTIES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4)
ITERATIONS = 200  # at most, of L-BFGS
Features = tuple[Tensor, Tensor]  # features, labels


def main() -> int:
    options = parse()
    device, start = torch.device(options.device), time.perf_counter()
    data = open_data(options.data)
    network = create(
        options.backbone, classes=len(data.classes), weights=options.weights, image_size=options.image_size
    ).to(device)
    parts = [features(network, data, domain, device) for domain in range(len(data.domains))]
    print(
        f"features of {sum(len(labels) for _, labels in parts):,} images, {time.perf_counter() - start:.0f} s",
        flush=True,
    )
    cells = []
    for seed in options.seeds:
        splits = [split(len(labels), trial=seed, domain=domain) for domain, (_, labels) in enumerate(parts)]
        for target, name in enumerate(data.domains):
            cells.append({"target": name, "seed": seed, **probe(parts, splits, target, options.penalties)})
            print(f"{name}, seed {seed}: {100 * cells[-1]['target_accuracy']:.2f} % on the target", flush=True)
    content = {
        "data": data.name,
        "backbone": options.backbone,
        "weights": options.weights.name,
        "image_size": network.preprocessing.size,
        "penalties": options.penalties,
        "commit": commit(),
        "machine": describe(options.device),
        "versions": versions(),
        "seconds": round(time.perf_counter() - start, 1),
        "cells": cells,
    }
    write_atomic(options.out, (json.dumps(content, indent=1) + "\n").encode())
    return 0


def features(network: Network, data: DomainSet, domain: int, device: torch.device) -> Features:
    """Return the features of all images of a domain, before dropout and head."""
    labels = torch.from_numpy(data.labels(domain)).to(device)
    everything = np.arange(len(labels))
    found = logits_of(network.featurizer, data, domain, everything, network.preprocessing, device=device)
    return found.to(device), labels


def probe(
    parts: Sequence[Features], splits: Sequence[dict[Part, Indices]], target: int, penalties: Sequence[float]
) -> dict[str, Any]:
    """Fit on the sources' training parts for each penalty; select by source validation."""
    sources = [domain for domain in range(len(parts)) if domain != target]
    training = [chosen(parts[domain], splits[domain][Part.TRAINING]) for domain in sources]
    x, y = (torch.cat(pieces) for pieces in zip(*training, strict=True))
    mean, std = x.mean(0), x.std(0) + 1e-6
    held_out = [chosen(parts[domain], splits[domain][Part.HELD_OUT]) for domain in sources]
    best: dict[str, Any] = {"validation": -1.0}
    weights = torch.zeros(x.shape[1] + 1, int(max(labels.max() for _, labels in parts)) + 1, device=x.device)
    for penalty in sorted(penalties, reverse=True):  # from the strongest; each starts from the previous weights
        weights = fit((x - mean) / std, y, weights, penalty)
        validation = [accuracy(((features - mean) / std, labels), weights) for features, labels in held_out]
        if (found := sum(validation) / len(validation)) > best["validation"]:
            features, labels = chosen(parts[target], splits[target][Part.TRAINING])
            reported = accuracy(((features - mean) / std, labels), weights)
            best = {"penalty": penalty, "validation": found, "target_accuracy": reported}
    return {name: round(value, 5) for name, value in best.items()}


def chosen(part: Features, indices: np.ndarray[Any, Any]) -> Features:
    index = torch.from_numpy(indices).to(part[1].device)
    return part[0][index], part[1][index]


def fit(x: Tensor, y: Tensor, start: Tensor, penalty: float) -> Tensor:
    """Return weights and, in the last row, biases that minimize cross-entropy + penalty / 2 · ‖weights‖²."""
    weights = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([weights], max_iter=ITERATIONS, history_size=20, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(x @ weights[:-1] + weights[-1], y) + penalty / 2 * weights[:-1].square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return weights.detach()


def accuracy(part: Features, weights: Tensor) -> float:
    features, labels = part
    return float(((features @ weights[:-1] + weights[-1]).argmax(1) == labels).double().mean())


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--weights", type=Path, required=True, help="a checkpoint of the backbone")
    parser.add_argument("--backbone", default="resnet50v1")
    parser.add_argument("--data", default="PACS")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--penalties", type=float, nargs="+", default=list(PENALTIES))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
