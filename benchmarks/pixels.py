"""Train a linear classifier on the pixels of the embedded set: the baseline that every method must exceed.

    python benchmarks/pixels.py sketch

Multinomial logistic regression on the raw pixels of the source domains' training parts is fitted by L-BFGS for several
weight decays. The script reports the best accuracy on the sources' held-out parts, for the given targets or for all.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch.nn import functional as F

from machine import heading, publish, table
from mecam.data.domains import source_domains
from mecam.data.shapes import ShapesSet, shapes
from mecam.data.splits import split
from mecam.splits import Part

SEEDS = (0, 1, 2)
DECAYS = (1e-4, 1e-3, 1e-2)


def main() -> None:
    data = shapes()
    rows = []
    for target in sys.argv[1:] or data.domains:
        found = [100 * best(data, target, seed) for seed in SEEDS]
        rows.append([target, *(f"{value:.1f}" for value in found), f"{np.mean(found):.1f}"])
    header = ["target", *(f"seed {seed}" for seed in SEEDS), "mean"]
    facts = {"measured": "mean accuracy over the source domains' held-out parts, percent"}
    publish([*heading("A linear classifier on pixels", "cpu", facts), *table(header, rows)], None)


def best(data: ShapesSet, target: str, seed: int) -> float:
    """Return the highest validation accuracy over the weight decays."""
    sources = source_domains(data, target)
    parts = {d: split(len(data.labels(d)), trial=seed, domain=d) for d in sources}
    images, labels = (
        torch.cat(found) for found in zip(*(load(data, d, parts[d][Part.TRAINING]) for d in sources), strict=True)
    )
    held_out = [load(data, d, parts[d][Part.HELD_OUT]) for d in sources]
    accuracies = []
    for decay in DECAYS:
        weight = fit(images, labels, decay)
        each = [((x @ weight).argmax(1) == y).double().mean() for x, y in held_out]
        accuracies.append(float(torch.stack(each).mean()))
    return max(accuracies)


def load(data: ShapesSet, domain: int, indices: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    pixels = data.images(domain, indices).flatten(1) / 255 - 0.5
    return torch.cat([pixels, torch.ones(len(pixels), 1)], 1), torch.from_numpy(data.labels(domain)[indices])


def fit(images: torch.Tensor, labels: torch.Tensor, decay: float) -> torch.Tensor:
    weight = torch.zeros(images.shape[1], int(labels.max()) + 1, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(images @ weight, labels) + decay * weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return weight.detach()


if __name__ == "__main__":
    main()
