"""Write a virtual domain for MeCAM. Run: python examples/custom_virtual_domain.py [steps].

A virtual domain is any object whose `active()` is a context manager. While it is active, the model sees a changed
batch. Here the light changes: every image gets a random gain per color channel.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.data.open import open_data
from mecam.models import create
from mecam.optim import MeCAM

UNSEEN = "sketch"


class OtherLight:
    """Multiply the model's input by gains exp(strength N(0, 1)), one per image and channel, while active."""

    def __init__(self, model: nn.Module, strength: float = 0.5) -> None:
        self.strength, self.on = strength, False
        model.register_forward_pre_hook(self._change)

    @contextmanager
    def active(self) -> Iterator[None]:
        self.on = True
        try:
            yield
        finally:
            self.on = False

    def _change(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if not self.on:
            return None
        images = inputs[0]
        gain = torch.exp(self.strength * torch.randn(*images.shape[:2], 1, 1, device=images.device))
        return (images * gain, *inputs[1:])


def train(name: str, network: Any, data: Any, steps: int) -> float:
    """Return the accuracy on the target domain after training on the others."""
    light = OtherLight(network) if name == "another light" else None
    optimizer = MeCAM(network.parameters(), torch.optim.Adam, lr=3e-3, virtual_domain=light, model=network)
    sources = [index for index, domain in enumerate(data.domains) if domain != UNSEEN]
    for _ in range(steps):
        chosen = [(domain, torch.randint(len(data.labels(domain)), (32,)).numpy()) for domain in sources]
        images = torch.cat([data.images(domain, indices) for domain, indices in chosen]) / 255
        labels = torch.cat([torch.from_numpy(data.labels(domain)[indices]) for domain, indices in chosen])

        def closure(images: Tensor = images, labels: Tensor = labels) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(network(images), labels)
            loss.backward()
            return loss

        optimizer.step(closure)
    network.eval()
    unseen = data.domains.index(UNSEEN)
    labels = torch.from_numpy(data.labels(unseen))
    with torch.no_grad():
        predicted = network(data.images(unseen, range(len(labels))) / 255).argmax(1)
    return (predicted == labels).float().mean().item()


def main(steps: int = 200) -> dict[str, float]:
    data = open_data("shapes")
    accuracies = {}
    for name in ("no virtual domain", "another light"):
        torch.manual_seed(0)
        network = create("resnet8", classes=len(data.classes))
        accuracies[name] = train(name, network, data, steps)
        print(f"{name}: {100 * accuracies[name]:.1f} % on {UNSEEN}, which was not trained on (one seed)")
    return accuracies


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
