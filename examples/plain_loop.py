"""Use Adam, SAM and MeCAM in a plain loop on a toy problem. Run: python examples/plain_loop.py [steps].

Three source domains show the same four blobs under different color casts. The fourth cast is the target domain. This
is an example of the interface, not a benchmark.
"""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.optim import create
from mecam.virtual import MixStyle

CASTS = {"red": (1.0, 0.3, 0.2), "green": (0.3, 1.0, 0.3), "blue": (0.2, 0.3, 1.0), "grey, unseen": (0.5, 0.5, 0.5)}
SEEDS = (0, 1, 2)


def domain(cast: tuple[float, ...], count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return images of a bright blob in one of four corners, with a color cast and noise."""
    labels = torch.randint(0, 4, (count,), generator=generator)
    rows, columns = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    jitter = torch.randn(count, 2, 1, 1, generator=generator)
    y, x = 4 + 8 * (labels // 2).view(-1, 1, 1) + jitter[:, 0], 4 + 8 * (labels % 2).view(-1, 1, 1) + jitter[:, 1]
    blob = torch.exp(-((rows - y) ** 2 + (columns - x) ** 2) / 8)
    color = torch.tensor(cast).view(1, 3, 1, 1)
    noise = 0.6 * torch.randn(count, 3, 16, 16, generator=generator)
    return blob.unsqueeze(1) * color + noise * (1.5 - color), labels


def train(name: str, seed: int, steps: int) -> float:
    """Train on three casts and return the accuracy on the fourth, in percent."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    model.append(nn.Linear(16 * 7 * 7, 4))
    settings = {} if name == "adam" else {"model": model}  # batch norm then changes once per step
    if name == "mecam":
        settings["virtual_domain"] = MixStyle().attach(model, ["0"])
    optimizer = create(name, model.parameters(), lr=1e-3, **settings)
    *sources, unseen = CASTS.values()
    for _ in range(steps):
        batches = [domain(cast, 16, generator) for cast in sources]
        images, labels = torch.cat([b[0] for b in batches]), torch.cat([b[1] for b in batches])

        def closure(images: Tensor = images, labels: Tensor = labels) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            return loss

        optimizer.step(closure)
    model.eval()
    images, labels = domain(unseen, 1000, generator)
    return 100 * (model(images).argmax(1) == labels).float().mean().item()


def main(steps: int = 60) -> None:
    print(f"accuracy on the unseen cast, percent, seeds {', '.join(map(str, SEEDS))}")
    for name in ("adam", "sam", "mecam"):
        print(f"{name:6s} " + "  ".join(f"{train(name, seed, steps):5.1f}" for seed in SEEDS))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
