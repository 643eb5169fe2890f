"""MADG, margin-based adversarial learning (Dayal et al., 2023): reduce the margin discrepancy between sources."""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any

from torch import Tensor, nn

from mecam.hyperparameters import Hyperparameter, LogUniform, Uniform
from mecam.methods.base import Batch, Method, Setting
from mecam.methods.side import Side
from mecam.models.network import Network


class MADG(Method):
    """experimental: min CE(h(z), y) + λ mean over pairs (i, j) of max_h′ of the margin discrepancy

        E_j log(1 − σ(h′(z))_c) + e^margin E_i log σ(h′(z))_c,  c = argmax h(z)

    Implemented from the definition of the margin disparity discrepancy; not compared with the authors' results. Every
    ordered pair has its own h′: with a shared one, each domain would be on both sides and the pairs would cancel.
    """

    name = "madg"
    weighted = True
    sources = 2
    lam = Hyperparameter("weight of the discrepancy", 0.1, search=LogUniform(-2, 0))
    margin = Hyperparameter("by which h′ should agree with h", math.log(4), search=Uniform(0, 2))

    def build(self, network: Network, setting: Setting) -> nn.Module:
        if setting.classes < 2:
            raise ValueError("madg needs at least 2 classes, got 1")
        pairs = setting.domains * (setting.domains - 1)
        heads = nn.Linear(network.num_features, pairs * setting.classes).to(network.head.weight)
        self.auxiliary = Side(heads, lr=setting.adam_lr, weight_decay=setting.weight_decay)
        self.sides = {"auxiliary": self.auxiliary}
        return network

    def loss(self, network: Network, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:
        z = network.features(batch.images)
        logits = network.head(z)
        guess = logits.argmax(1)
        discrepancy = self.discrepancy(self.auxiliary.frozen(z), guess, batch.domains)
        return batch.cross_entropy(logits) + self.lam * discrepancy, [z.detach(), guess]

    def after(self, network: Any, batch: Batch, draw: Any, state: list[Tensor]) -> None:
        z, guess = state
        self.auxiliary.step(-self.discrepancy(self.auxiliary.module(z), guess, batch.domains))

    def discrepancy(self, outputs: Tensor, guess: Tensor, domains: int) -> Tensor:
        """Return the mean over the pairs, from the outputs of all auxiliary heads on all images."""
        first, second = zip(*permutations(range(domains), 2), strict=True)
        logits = outputs.view(len(outputs), len(first), -1)  # (image, pair, class)
        chosen = guess.view(-1, 1, 1).expand(-1, len(first), 1)
        whole = logits.logsumexp(2)
        agree = logits.gather(2, chosen).squeeze(2) - whole
        # log(1 − σ_c) from the other classes, since 1 − σ_c loses all digits where σ_c is close to 1
        disagree = logits.scatter(2, chosen, -math.inf).logsumexp(2) - whole
        agree, disagree = (of.view(domains, -1, len(first)).mean(1) for of in (agree, disagree))  # (domain, pair)
        pairs = range(len(first))
        return (disagree[second, pairs] + math.exp(self.margin) * agree[first, pairs]).mean()
