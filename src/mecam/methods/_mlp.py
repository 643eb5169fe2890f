"""The multilayer perceptron of adversaries."""

from __future__ import annotations

from torch import nn


def mlp(inputs: int, outputs: int, *, width: int, depth: int, dropout: float = 0.0) -> nn.Sequential:
    """Return `depth` linear layers with dropout and ReLU between them."""
    sizes = [inputs, *[width] * (depth - 1)]
    layers = nn.Sequential()
    for size in sizes[:-1]:
        layers.extend([nn.Linear(size, width), nn.Dropout(dropout), nn.ReLU()])
    return layers.append(nn.Linear(sizes[-1], outputs))
