"""ARM, adaptive risk minimization (Zhang et al., 2021): a context computed from the batch identifies the domain."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from mecam.methods.base import Batch, Method, Setting
from mecam.models.network import Network

SUPPORT = 8  # images that share a context
WIDTH = 64  # channels of the context net


class ARM(Method):
    """min CE(f([x, mean of c over the support of x]), y) over the network f and the context net c

    A support is 8 consecutive images of a domain, or all of its images where 8 does not divide their number; in
    prediction, the same of the batch. DomainBed's optimizer leaves the context net out; here it is trained.
    """

    name = "arm"
    weighted = True
    capturable = True
    mates = True

    def build(self, network: Network, setting: Setting) -> nn.Module:
        return Contextual(network)

    def loss(self, network: Contextual, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:
        support = support_of(len(batch.labels) // batch.domains)
        return batch.cross_entropy(network(batch.images, support)), state


def support_of(images: int) -> int:
    """Return the support size for this number of images."""
    return SUPPORT if images % SUPPORT == 0 else images


class Contextual(nn.Module):
    """A network whose featurizer sees a context beside each image."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        weight = network.head.weight
        network.featurizer = Adaptive(network.featurizer).to(device=weight.device, dtype=weight.dtype)
        network.stages = tuple(name.replace("featurizer.", "featurizer.backbone.", 1) for name in network.stages)
        self.network = network
        self.train(network.training)

    def forward(self, images: Tensor, support: int | None = None) -> Tensor:
        network = self.network
        precision = network.precision
        with nullcontext() if precision is None else torch.autocast(images.device.type, precision):
            z = network.featurizer(images, support)
        return cast("Tensor", network.head(network.dropout(z.to(network.head.weight.dtype))))

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        # freeze_bn keeps pretrained statistics as they are; the context net has none to keep
        self.network.featurizer.get_submodule("context").train(mode)
        return self


class Adaptive(nn.Module):
    """A backbone with a fourth input channel: the context net's output, averaged over a support."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.context = nn.Sequential(
            *(_convolution(3, WIDTH), nn.BatchNorm2d(WIDTH), nn.ReLU()),
            *(_convolution(WIDTH, WIDTH), nn.BatchNorm2d(WIDTH), nn.ReLU()),
            _convolution(WIDTH, 1),
        )
        self.backbone = backbone
        widen(backbone)

    def forward(self, images: Tensor, support: int | None = None) -> Tensor:
        support = support_of(len(images)) if support is None else support
        contexts = self.context(images).unflatten(0, (-1, support)).mean(1).repeat_interleave(support, 0)
        return cast("Tensor", self.backbone(torch.cat([images, contexts.to(images.dtype)], 1)))


def widen(backbone: nn.Module) -> None:
    """Give the first convolution a fourth input channel, initialised with the weights of the first channel."""
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d) and module.in_channels == 3 and module.groups == 1:
            module.in_channels = 4
            module.weight = nn.Parameter(torch.cat([module.weight.detach(), module.weight.detach()[:, :1]], 1))
            return
    raise ValueError(
        f"arm gives the backbone a fourth channel, and {type(backbone).__name__} has no convolution of 3 channels; "
        "choose another backbone"
    )


def _convolution(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 5, padding=2)
