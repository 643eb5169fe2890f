"""What a domain-generalization method is: which gradient to take on a batch of several domains.

An optimizer runs the closure one to four times a step, at weights of its choice, so a method says *when* things happen:
what is random is drawn once a step (`draw`); the loss is a pure function that can be taken at any weights (`loss`), and
of the states it returns the loop keeps the one of the first pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mecam.models.network import Network
from mecam.optim.hyperparameters import Hyperparameter


@dataclass(frozen=True)
class Batch:
    """Images of several source domains, domain after domain, the same number of each."""

    images: Tensor
    labels: Tensor
    domains: int

    def by_domain(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.images.chunk(self.domains), self.labels.chunk(self.domains), strict=True))


class Method:
    """The parts of a method; ERM, below most others, needs just `loss`."""

    name: ClassVar[str]
    hyperparameters: ClassVar[Mapping[str, Hyperparameter]] = {}
    sources: ClassVar[int] = 1  # how many source domains it needs at least

    def draw(self, batch: Batch, generator: torch.Generator) -> Any:  # noqa: ARG002
        """Everything random in the objective, once a step."""
        return None

    def loss(self, network: Network, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:
        """The objective at the network's weights, and the next running state."""
        raise NotImplementedError

    def initial_state(self) -> Any:
        """The running state before the first step, in types that a checkpoint can hold."""
        return None
