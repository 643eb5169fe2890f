"""The network: a featurizer, dropout and a linear head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mecam.preprocessing import IMAGENET, Preprocessing

RANDOM = "initialised at random"  # a network's note


@dataclass(frozen=True)
class Backbone:
    """A featurizer and its metadata."""

    featurizer: nn.Module
    num_features: int
    stages: tuple[str, ...]  # module names inside the featurizer, where a virtual domain acts
    classifier: tuple[str, ...]  # names in checkpoints that the head replaces, such as ("fc",)
    preprocessing: Preprocessing = IMAGENET
    checkpoint: Path | None = None  # pretrained weights, not loaded yet
    offline: tuple[str, dict[str, Any]] | None = None  # timm's name and settings of a model on the Hub


class Network(nn.Module):
    """head(dropout(featurizer(images))).

    Args:
        backbone: the featurizer and its metadata.
        classes: outputs of the linear head.
        dropout: probability of dropping a feature in training.
        freeze_bn: keep the featurizer's batch norms in eval mode. Their statistics are constant; scale and shift are
            still trained. Call train() on the network, not on the featurizer.
    """

    def __init__(self, backbone: Backbone, *, classes: int, dropout: float = 0.0, freeze_bn: bool = False) -> None:
        super().__init__()
        if classes < 1:
            raise ValueError(f"classes must be at least 1, got {classes}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        self.featurizer = backbone.featurizer
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(backbone.num_features, classes)
        self.num_features = backbone.num_features
        self.stages = tuple(f"featurizer.{name}" for name in backbone.stages)
        self.preprocessing = backbone.preprocessing
        self.offline = backbone.offline
        self.freeze_bn = freeze_bn
        self.precision: torch.dtype | None = None  # of the featurizer, under autocast; features are float32
        self.note = RANDOM  # where the weights came from
        self.train()

    def features(self, images: Tensor) -> Tensor:
        """Return features (images, num_features) after dropout, for the head and for penalties of methods."""
        return cast("Tensor", self.dropout(self.pooled(images)))

    def pooled(self, images: Tensor) -> Tensor:
        """Return features (images, num_features) before dropout."""
        if self.precision is None:
            return cast("Tensor", self.featurizer(images))
        with torch.autocast(images.device.type, self.precision):
            return cast("Tensor", self.featurizer(images)).float()

    def forward(self, images: Tensor) -> Tensor:
        return cast("Tensor", self.head(self.features(images)))

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.freeze_bn:
            for module in self.featurizer.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self


def virtual_domain_stages(ends: Sequence[str]) -> tuple[str, ...]:
    """Select the layers for a virtual domain from the last layer of every resolution: up to three before the final one.

    In a ResNet these are layer1, layer2 and layer3. In the final layer the channel means, a part of the style, are the
    pooled features themselves: another image's style there would be another image's class.
    """
    return tuple(ends[:-1][-3:])
