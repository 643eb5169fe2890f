"""MixStyle (Zhou et al., 2021) as a method: train on images with mixed styles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mecam import virtual
from mecam.hyperparameters import Hyperparameter
from mecam.methods.base import Batch, Method, Setting
from mecam.models.network import Network
from mecam.virtual._draws import Draw
from mecam.virtual.mixstyle import mix_style


class Numbers(NamedTuple):
    """The random numbers of a step, one row per stage."""

    partners: Tensor
    weights: Tensor
    mixes: Tensor  # whether the stage mixes


class MixStyle(Method):
    """ERM with image styles mixed at each of the network's stages with probability p.

    virtual.MixStyle has the formula; a ResNet's stages are layer1, layer2 and layer3. All passes of a step share their
    partners and weights.
    """

    name = "mixstyle"
    weighted = True
    capturable = True
    p = Hyperparameter("probability that a stage mixes a batch", 0.5, high=1)
    alpha = Hyperparameter("parameter of Beta(α, α), which the mixing weights follow", 0.1, open_low=True)

    def build(self, network: Network, setting: Setting) -> Network:
        if not network.stages:
            raise ValueError("mixstyle needs a backbone with named stages; this one has none")
        self.stages = list(network.stages)
        self.styles = _AsDrawn(self.p, self.alpha, generator=torch.Generator()).attach(network, self.stages)
        return network

    def draw(self, batch: Batch, generator: torch.Generator) -> Numbers:
        draws = Draw(torch.device("cpu"), torch.float32, generator)
        count = len(batch.labels)
        rows = [(draws.partner(count, None), draws.beta(self.alpha, count), draws.happens(self.p)) for _ in self.stages]
        return Numbers(*(torch.stack(column).to(batch.labels.device) for column in zip(*rows, strict=True)))

    def loss(self, network: Network, batch: Batch, draw: Numbers, state: Any) -> tuple[Tensor, Any]:
        self.styles.numbers = dict(zip(self.stages, zip(*draw, strict=True), strict=True))
        with self.styles.active():
            return batch.cross_entropy(network(batch.images)), state

    def gradient(self, network: Network, batch: Batch, draw: Numbers, state: Any, *, graph: bool = False) -> Any:
        with self.styles.active():  # also in the backward pass, where a checkpointed block runs again
            return super().gradient(network, batch, draw, state, graph=graph)


class _AsDrawn(virtual.MixStyle):
    """MixStyle with numbers that were drawn before the step: partner, weight and whether to mix, by stage."""

    numbers: Mapping[str, tuple[Tensor, ...]]

    def _draw(self, x: Tensor, layer: str) -> Any:
        self._ran = True
        return self.numbers[layer]

    def _apply(self, draw: Any, x: Tensor) -> Tensor:
        partner, weight, mixes = draw
        if len(x) == 1 or x.shape[-1] == 1:
            return x
        mixed = mix_style(x, weight.to(torch.promote_types(x.dtype, torch.float32)), partner)
        return torch.where(mixes, mixed.to(x.dtype), x)
