"""Two featurizers in place of one, shared by mDSDI and ADRMX."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from mecam.models.network import Network


def double(network: Network, first: str, second: str) -> None:
    """Give the network two featurizers by these names, with the same initial weights; features are concatenated."""
    network.featurizer = Pair(network.featurizer, first, second)
    network.stages = tuple(
        name.replace("featurizer.", f"featurizer.{part}.", 1) for part in (first, second) for name in network.stages
    )
    network.num_features *= 2


class Pair(nn.Module):
    """Two copies of a featurizer, side by side."""

    def __init__(self, featurizer: nn.Module, first: str, second: str) -> None:
        super().__init__()
        self.add_module(first, featurizer)
        self.add_module(second, deepcopy(featurizer))

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([part(images) for part in self.children()], 1)
