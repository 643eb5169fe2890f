"""The network that everything trains: a featurizer, dropout and a linear head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mecam.image_sizes import Interpolation

Triple = tuple[float, float, float]


@dataclass(frozen=True)
class Normalization:
    """(x - mean) / std, a channel at a time, of pixels in [0, 1]."""

    mean: Triple
    std: Triple


IMAGENET = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Backbone:
    """A featurizer, and what one must know to use it."""

    featurizer: nn.Module
    num_features: int
    stages: tuple[str, ...]  # names inside the featurizer
    classifier: tuple[str, ...]  # under which names checkpoints hold what the head replaces: ("fc",)
    normalization: Normalization = IMAGENET
    image_size: int = 224
    checkpoint: Path | None = None  # pretrained weights that are still to be loaded
    interpolation: Interpolation = "bilinear"  # how images are resized for it
    offline: tuple[str, dict[str, Any]] | None = None  # name and settings in timm of a model that the Hub describes


class Network(nn.Module):
    """head(dropout(featurizer(images))).

    Args:
        backbone: what computes the features.
        classes: outputs of the head, a linear layer as torch initialises it.
        dropout: the probability with which a feature is dropped while training.
        freeze_bn: the featurizer's batch norms stay in eval mode whatever train() says, so that their statistics are
            used and never change, while their scale and shift are still trained. The network sees to that in train();
            do not call train() on the featurizer itself.
    """

    def __init__(self, backbone: Backbone, *, classes: int, dropout: float = 0.0, freeze_bn: bool = False) -> None:
        super().__init__()
        if classes < 1:
            raise ValueError(f"a network has at least 1 class, got classes={classes}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is a probability below 1, got {dropout}")
        self.featurizer = backbone.featurizer
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(backbone.num_features, classes)
        self.num_features = backbone.num_features
        self.stages = tuple(f"featurizer.{name}" for name in backbone.stages)
        self.normalization = backbone.normalization
        self.image_size = backbone.image_size
        self.interpolation = backbone.interpolation
        self.offline = backbone.offline
        self.freeze_bn = freeze_bn
        self.precision: torch.dtype | None = None  # the featurizer's, under autocast; features come out in float32
        self.note = "initialised at random"  # where the weights came from
        self.train()

    def features(self, images: Tensor) -> Tensor:
        """(images, num_features), after dropout: what the head and a method's penalties see."""
        return cast("Tensor", self.dropout(self.pooled(images)))

    def pooled(self, images: Tensor) -> Tensor:
        """(images, num_features), before dropout."""
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
    """Where a virtual domain attaches, given the last layer of every resolution: three layers before the final one.

    ResNet's layer1, layer2, layer3. The final one is left out since the mean of its channels, a part of the style,
    is the pooled feature itself: another image's style there would be another image's class.
    """
    return tuple(ends[:-1][-3:])


__all__ = ["IMAGENET", "Backbone", "Network", "Normalization", "virtual_domain_stages"]
