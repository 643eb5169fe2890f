"""Write a method with a meta pass. Run: python examples/held_out_domain.py [steps].

Each step holds out one source domain. MeCAM's first two passes train on the others, its meta pass on the held-out
domain. `draw` makes the random choice once per step; `virtual_domain` is on in the meta pass. On PACS this method
gained nothing over ERM under MeCAM.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import mecam
from mecam.methods import Batch, Method, register
from mecam.recipe import Recipe


class Switch:
    """On while the optimizer takes its meta pass."""

    on = False

    @contextmanager
    def active(self) -> Iterator[None]:
        self.on = True
        try:
            yield
        finally:
            self.on = False


@register
class HeldOut(Method):
    """f: mean cross-entropy over all source domains but one, drawn in each step; m: over the one held out."""

    name = "heldout"
    sources = 2

    def __init__(self) -> None:
        self.virtual_domain = Switch()

    def draw(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the indices of the images of the other domains, and of the domain held out."""
        chosen = int(torch.randint(batch.domains, (), generator=generator))
        parts = torch.arange(len(batch.labels)).chunk(batch.domains)
        others = torch.cat([part for domain, part in enumerate(parts) if domain != chosen])
        return others.to(batch.labels.device), parts[chosen].to(batch.labels.device)

    def loss(self, network: Any, batch: Batch, draw: tuple[Tensor, Tensor], state: Any) -> tuple[Tensor, Any]:
        others, held_out = draw
        images = held_out if self.virtual_domain.on else others
        return F.cross_entropy(network(batch.images[images]), batch.labels[images]), state


def main(steps: int = 200) -> dict[str, float]:
    accuracies = {}
    with tempfile.TemporaryDirectory() as out:
        for method in ("erm", "heldout"):
            entries = {"method": method, "optimizer": "mecam", "virtual": "none", "target": "sketch", "steps": steps}
            accuracies[method] = mecam.train(Recipe(**entries), out).read_result()["target_accuracy"]
            print(f"{method}: {100 * accuracies[method]:.1f} % on sketch, which was not trained on (one seed)")
    return accuracies


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
