"""LP-FT, linear probing, then fine-tuning (Kumar et al., 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import nn

from mecam.hyperparameters import Hyperparameter, LogUniform
from mecam.methods.base import Setting
from mecam.methods.erm import ERM
from mecam.models.network import Network


class LPFT(ERM):
    """ERM on the head alone, then on all weights.

    A trained head passes smaller gradients to the features than a random one, so pretrained features change less.
    Lengths and rates are those of ERM++. The optimizer is reset at the second stage. Batch norm's statistics follow the
    batches in both stages, unless the network freezes them.
    """

    name = "lpft"
    accumulates = True
    capturable = True
    by_domain = True
    on_features = False  # a linear probe is its first stage
    linear_steps = Hyperparameter("steps of the head alone; scaled down in runs shorter than 5,000 steps", 500)
    linear_lr = Hyperparameter(
        "learning rate of these steps; not given: lr", open_low=True, search=LogUniform(-5, -3.5)
    )
    linear_rate = Hyperparameter("the same as a factor on lr, where linear_lr is not given", 1.0, open_low=True)

    def build(self, network: Network, setting: Setting) -> Network:
        self.tuned_from = setting.scaled(self.linear_steps)
        self.first_rate = self.linear_rate
        if self.linear_lr is not None and setting.lr:
            self.first_rate = self.linear_lr / setting.lr
        return network

    def groups(self, network: nn.Module) -> Sequence[Sequence[nn.Parameter]]:
        parts = cast("Network", network)
        return [list(parts.featurizer.parameters()), list(parts.head.parameters())]

    def rates(self, step: int) -> Sequence[float]:
        return [0.0, self.first_rate] if step < self.tuned_from else [1.0, 1.0]

    def restarts(self, step: int) -> bool:
        return step == self.tuned_from != 0
