"""MIRO, mutual information regularization with an oracle (Cha et al., 2022): stay close to the pretrained features."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.hyperparameters import Choice, Hyperparameter
from mecam.methods.base import Batch, Method, Setting
from mecam.models.network import Network
from mecam.virtual._layers import ends_with_channels

FLOOR, INITIAL = 1e-5, 0.1  # variances
FASTER = 10.0  # learning rate of the variances, relative to the network's


class MIRO(Method):
    """ERM with the features fₗ of every layer l pulled towards those of the initial network, f⁰ₗ:

    CE + ld Σₗ ½ mean( (fₗ − f⁰ₗ)² / sₗ + log sₗ ),   sₗ = softplus(bₗ) + 1e-5, learned, one per channel

    The layers are the network's stages and its pooled features, for a backbone of any kind; the authors tap a ResNet
    after its stem and after all four stages. f⁰ is a fixed function of an image: its batch norm is in eval mode.
    """

    name = "miro"
    weighted = True
    accumulates = True
    capturable = True
    by_domain = True
    ld = Hyperparameter("weight of the regularizer", 0.1, search=Choice((0.01, 0.1)))

    def build(self, network: Network, setting: Setting) -> Anchored:
        return Anchored(network)

    def groups(self, network: nn.Module) -> Sequence[Sequence[nn.Parameter]]:
        anchored = cast("Anchored", network)
        return [list(anchored.network.parameters()), list(anchored.variances.parameters())]

    def rates(self, step: int) -> Sequence[float]:
        return [1.0, FASTER]

    def loss(self, network: Anchored, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:
        logits, drift = network.with_drift(batch.images)
        return batch.cross_entropy(logits) + self.ld * drift, state


class Anchored(nn.Module):
    """A network, the variances of its features, and a copy of the initial network, which is not in the state dict."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        frozen = copy.deepcopy(network).eval().requires_grad_(False)
        self.network = network
        self.taps, frozen_taps = Taps(network), Taps(frozen)
        self._start = (frozen, frozen_taps)  # in a tuple, where Module does not register it
        probe = self._probe()
        last = [*(ends_with_channels(network, stage) for stage in network.stages), False]
        self.axes = [_channels(*each) for each in zip(probe, last, strict=True)]
        start = math.log(math.expm1(INITIAL - FLOOR))
        self.variances = nn.ParameterList(
            nn.Parameter(features.new_full((features.shape[axis],), start))
            for features, axis in zip(probe, self.axes, strict=True)
        )

    def forward(self, images: Tensor) -> Tensor:
        return cast("Tensor", self.network(images))

    def with_drift(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits and Σₗ ½ mean( (fₗ − f⁰ₗ)² / sₗ + log sₗ )."""
        network = self.network
        with self.taps.listening() as outputs:
            features = network.pooled(images)
        drift = torch.zeros((), dtype=features.dtype, device=features.device)
        then = self._at_start(images)
        for now, start, axis, b in zip([*outputs, features], then, self.axes, self.variances, strict=True):
            others = [other for other in range(now.ndim) if other != axis]
            moved = (now.to(b.dtype) - start.to(b.dtype)).square().mean(others)
            s = F.softplus(b) + FLOOR
            drift = drift + 0.5 * (moved / s + s.log()).mean()
        return network.head(network.dropout(features)), drift

    def _at_start(self, images: Tensor) -> list[Tensor]:
        frozen, taps = self._start
        with torch.no_grad(), taps.listening() as outputs:
            features = frozen.pooled(images)
        return [*outputs, features]

    def _probe(self) -> list[Tensor]:
        """Return the features of one black image, for their shapes."""
        weight = self.network.head.weight
        size = self.network.preprocessing.size
        return [features.to(weight.dtype) for features in self._at_start(weight.new_zeros(1, 3, size, size))]

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Move the frozen copy to the network's device and dtype."""
        self._start[0]._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call, no-any-return]


def _channels(features: Tensor, last: bool) -> int:
    """Return the axis of the channels: maps (B, C, H, W) or (B, H, W, C), tokens (B, N, C), features (B, C)."""
    return features.ndim - 1 if features.ndim == 3 or last else 1


class Taps:
    """Hooks that collect the outputs of a network's stages inside `listening`."""

    def __init__(self, network: Network) -> None:
        self.outputs: list[Tensor] | None = None
        for name in network.stages:
            network.get_submodule(name).register_forward_hook(self._heard)

    @contextmanager
    def listening(self) -> Iterator[list[Tensor]]:
        """Collect the outputs in the list."""
        outputs: list[Tensor] = []
        self.outputs = outputs
        try:
            yield outputs
        finally:
            self.outputs = None

    def _heard(self, _module: nn.Module, _args: Any, output: Tensor) -> None:
        if self.outputs is not None:
            self.outputs.append(output)
