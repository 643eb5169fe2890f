"""What is left of a perturbation of weights kept in bfloat16 or float16?

    python benchmarks/half_precision.py --rho 0.05 --out benchmarks/results/half_precision.md

SAM perturbs a ViT in half precision, rounding to the nearest or stochastically. The perturbed weights are compared with
theta + rho g / ‖g‖, computed in float64 from the same gradient. Loss and gradient at both are taken in float32, so that
the rounding of the forward does not count.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

import mecam
from machine import heading, publish, table
from mecam.optim import SAM

mecam.repair_torchvision()
import timm  # noqa: E402 - after the repair

HEADER = [
    "weights, rounding",
    "moved",
    "‖d‖ / rho",
    "cos(d, e)",
    "<d, e> / rho²",
    "rise of the loss",
    "cos of the changes of ∇f",
]


def flat(tensors: object) -> Tensor:
    return torch.cat([tensor.detach().double().reshape(-1) for tensor in tensors])  # type: ignore[attr-defined]


def loss_of(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    model.zero_grad()
    logits = model(images.to(next(model.parameters()).dtype))
    loss = nn.functional.cross_entropy(logits.float(), labels)
    loss.backward()
    return loss


class Reference:
    """Loss and gradient in float32 at weights given as one vector."""

    def __init__(self, model: nn.Module, images: Tensor, labels: Tensor) -> None:
        self.model, self.batch = copy.deepcopy(model).float(), (images, labels)

    def at(self, weights: Tensor) -> tuple[float, Tensor]:
        nn.utils.vector_to_parameters(weights.float(), self.model.parameters())
        loss = loss_of(self.model, *self.batch).item()
        return loss, flat(p.grad for p in self.model.parameters())


def measure(model: nn.Module, dtype: torch.dtype, rho: float, images: Tensor, labels: Tensor) -> list[list[str]]:
    rows = []
    for stochastic in (False, True):
        half = copy.deepcopy(model).to(dtype)
        with warnings.catch_warnings(action="ignore"):
            optimizer = SAM(half.parameters(), torch.optim.SGD, rho, stochastic_rounding=stochastic)
        loss_of(half, images, labels)
        theta, gradient = flat(half.parameters()), flat(p.grad for p in half.parameters())
        optimizer.first_step()
        d, e = flat(half.parameters()) - theta, rho * gradient / gradient.norm()
        reference = Reference(model, images, labels)
        (f, g), (f_wanted, g_wanted), (f_there, g_there) = map(reference.at, (theta, theta + e, theta + d))
        numbers = [
            f"{100 * (d != 0).double().mean():.1f} %",
            f"{d.norm() / rho:.2f}",
            f"{torch.cosine_similarity(d, e, 0):.3f}",
            f"{d @ e / rho**2:.3f}",
            f"{f_there - f:.4f} of {f_wanted - f:.4f}",
            f"{torch.cosine_similarity(g_there - g, g_wanted - g, 0):.4f}",
        ]
        rows.append([f"{str(dtype).removeprefix('torch.')}, {'stochastic' if stochastic else 'nearest'}", *numbers])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--rho", type=float, default=0.05)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = timm.create_model(options.model, num_classes=7, img_size=options.image_size)
    images, labels = torch.randn(8, 3, options.image_size, options.image_size), torch.arange(8) % 7
    facts = {
        "setting": f"{options.model}, 8 random images of {options.image_size} pixels, 7 classes, rho {options.rho}"
    }
    lines = heading("Perturbations of weights in half precision", "cpu", facts)
    lines += ["", "d is the realised perturbation, e = rho g / ‖g‖ the wanted one."]
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for steps in (0, 30):
        for _ in range(steps):
            loss_of(model, images, labels)
            adam.step()
        lines += ["", f"After {steps} steps of AdamW in float32:" if steps else "Random weights:"]
        halves = (torch.bfloat16, torch.float16)
        lines += table(HEADER, [row for dtype in halves for row in measure(model, dtype, options.rho, images, labels)])
    publish(lines, options.out)


if __name__ == "__main__":
    main()
