"""MLDG, meta-learning for domain generalization (Li et al., 2018), first order."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from mecam.hyperparameters import Choice, Hyperparameter, LogUniform
from mecam.methods._gradients import Named, after_first_adam_step, fill, gradient_at, plain_pass, spare_buffers, trained
from mecam.methods.base import Batch, Method, Setting
from mecam.models.network import Network


class MLDG(Method):
    """Take steps on one domain that also help another, over pairs (i, j) of meta-train and meta-test domains:

    G = Σ_(i,j) ( ∇f_i(θ) + β ∇f_j(θ') ) / S,   θ' = θ − lr u,  u = Adam's first step from ∇f_i(θ) + weight decay

    The domains are split anew in every step; meta-test domains repeat where they are fewer. At least one domain is
    left to meta-train. With batch statistics in batch norm, a pass sees those of its domain; the running
    ones follow a plain pass at θ.
    """

    name = "mldg"
    weighted = True
    on_features = True
    beta = Hyperparameter("weight of the meta-test gradient", 1.0, search=LogUniform(-1, 1))
    meta_test = Hyperparameter("meta-test domains, at most all but one", 2, low=1, integer=True, search=Choice((1, 2)))
    sources = 2
    surgery = True

    def build(self, network: Network, setting: Setting) -> Network:
        self.lr, self.weight_decay = setting.adam_lr, setting.weight_decay
        return network

    def draw(self, batch: Batch, generator: torch.Generator) -> list[int]:
        """Draw the order of the domains, meta-test domains last."""
        order: list[int] = torch.randperm(batch.domains, generator=generator).tolist()
        return order

    def gradient(
        self, network: Network, batch: Batch, draw: list[int], state: Any, *, graph: bool = False
    ) -> tuple[Tensor, Any]:
        value = plain_pass(network, batch)
        weights, buffers, domains = trained(network), spare_buffers(network), batch.by_domain()
        first_test = max(1, batch.domains - self.meta_test)
        total: Named = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        for i, j in zip(draw[:first_test], cycle(draw[first_test:])):
            train = gradient_at(network, weights, buffers, *domains[i], batch.class_weights)
            stepped = after_first_adam_step(weights, train, lr=self.lr, weight_decay=self.weight_decay)
            test = gradient_at(network, stepped, buffers, *domains[j], batch.class_weights)
            for name in total:
                total[name] += (train[name] + self.beta * test[name]) / batch.domains
        fill(network, total)
        return value, state
