"""MixStyle (Zhou et al., 2021) as a method: train on images whose style is partly another image's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from mecam import virtual
from mecam.methods.base import Batch, Method, Setting
from mecam.models.network import Network
from mecam.optim.hyperparameters import Hyperparameter


class MixStyle(Method):
    """ERM with the styles of images mixed at the network's stages, at each with probability p

    virtual.MixStyle has the formula; a ResNet's stages are layer1, layer2 and layer3. All passes of a step share their
    partners and weights, unless the network is compiled: compiled code draws from the device's default generator.
    """

    name: ClassVar[str] = "mixstyle"
    hyperparameters: ClassVar[Mapping[str, Hyperparameter]] = {
        "p": Hyperparameter("probability that a stage mixes a batch", high=1),
        "alpha": Hyperparameter("of Beta(α, α), which the weights are from", open_low=True),
    }

    def __init__(self, *, p: float = 0.5, alpha: float = 0.1) -> None:
        self.p, self.alpha = float(p), float(alpha)

    def build(self, network: Network, setting: Setting) -> Network:  # noqa: ARG002
        if not network.stages:
            raise ValueError("mixstyle needs a backbone with known stages to mix styles at; this one names none")
        self.generator = torch.Generator()
        self.styles = virtual.MixStyle(self.p, self.alpha, generator=self.generator).attach(network, network.stages)
        return network

    def draw(self, batch: Batch, generator: torch.Generator) -> int:  # noqa: ARG002
        """The seed of all numbers of this step."""
        return int(torch.randint(2**63 - 1, (), generator=generator))

    def loss(self, network: Network, batch: Batch, draw: int, state: Any) -> tuple[Tensor, Any]:
        self.generator.manual_seed(draw)
        with self.styles.active():
            return F.cross_entropy(network(batch.images), batch.labels), state
