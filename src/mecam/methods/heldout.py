"""A source domain held out in each step, for optimizers with a meta pass (experimental)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.methods.base import Batch, Method
from mecam.models.network import Network


class Switch:
    """On while an optimizer takes its meta pass."""

    on = False

    @contextmanager
    def active(self) -> Iterator[None]:
        self.on = True
        try:
            yield
        finally:
            self.on = False


class HeldOut(Method):
    """f is ERM on all source domains but one, drawn anew in every step; the meta pass is ERM on that one.

        f = mean of CE over the other domains,   m = mean of CE over the one held out

    Under MeCAM δ then comes from the others alone. A virtual domain of the recipe acts in the meta pass as well;
    `virtual=none` leaves the held-out domain as it is. With S domains MeCAM's three passes run over (2 (S − 1) + 1) / S
    batches: 1.67 with three. Under an optimizer without a meta pass the domain held out is not looked at in that step.
    Under torchrun each process draws its own.
    """

    name: ClassVar[str] = "heldout"
    recordable: ClassVar[bool] = True
    sources: ClassVar[int] = 2
    compares: ClassVar[bool] = True

    def __init__(self) -> None:
        self.virtual_domain = Switch()

    def draw(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The images of the other domains, and of the one held out."""
        chosen = int(torch.randint(batch.domains, (), generator=generator))
        images = torch.arange(len(batch.labels)).chunk(batch.domains)
        others = torch.cat([images[domain] for domain in range(batch.domains) if domain != chosen])
        return others.to(batch.labels.device), images[chosen].to(batch.labels.device)

    def loss(self, network: Network, batch: Batch, draw: tuple[Tensor, Tensor], state: Any) -> tuple[Tensor, Any]:
        others, held_out = draw
        images = held_out if self.virtual_domain.on else others
        return F.cross_entropy(network(batch.images[images]), batch.labels[images]), state
