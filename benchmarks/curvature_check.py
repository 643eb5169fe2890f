"""Compare the largest Hessian eigenvalue in float32 with a reference in float64. The limit is 1 %.

    python benchmarks/curvature_check.py

Networks are trained for some steps of Adam on images of the embedded set. The eigenvalue of largest magnitude is
computed as by `mecam curvature --exact` and compared with:

- `dense`: the whole Hessian in float64, column by column, and LAPACK; for a network of a few hundred weights
- `Lanczos`: float64, another random start, a tolerance of 1e-6; both on the same smaller set of images
- `residual`: ‖Hv − λv‖ for the float32 eigenvector v, with a product in float64 over all images, and λ its Rayleigh
  quotient. An eigenvalue of H is within this distance of λ; the Lanczos row shows that it is the largest
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from machine import heading, parse, publish, table
from mecam.analysis.objective import Objective, dot, norm
from mecam.analysis.operators import Counted
from mecam.analysis.spectrum import eigenpairs, eigenvalues
from mecam.data.augment import evaluate_transform
from mecam.data.shapes import shapes
from mecam.models.registry import create
from mecam.preprocessing import Preprocessing

BAR = 0.01
CLASSES = 7
BATCH = 100


def main() -> None:
    options = parse(__doc__, backbone="resnet18", images=1000, few=200, steps=30)
    images, labels = drawn(options.images)
    some = images[: options.few], labels[: options.few]
    tiny = trained(small, images, labels, options.steps)
    network = trained(
        lambda: create(options.backbone, classes=CLASSES, pretrained=False), images, labels, options.steps
    )
    rows = [
        row("small", tiny, images, labels, "dense", dense),
        row(options.backbone, network, *some, "Lanczos", lanczos),
        row(options.backbone, network, images, labels, "residual", residual),
    ]
    facts = {
        "setting": f"images of {images.shape[-1]} px, {options.steps} steps of Adam before, eval mode",
        "measured": "the eigenvalue of largest magnitude; difference: relative, of float32 to the reference; for "
        "residual the distance to the quotient and the residual itself, together",
    }
    header = [
        "network",
        "weights",
        "images",
        "float32",
        "products",
        "seconds",
        "reference",
        "float64",
        "difference",
        "",
    ]
    publish([*heading("The largest eigenvalue", "cpu", facts), *table(header, rows)], options.out)


def row(
    name: str,
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    kind: str,
    reference: Callable[[Objective, list[Tensor]], tuple[float, float]],
) -> list[str]:
    """Return the row of an eigenvalue: its value, the reference and their distance."""
    single = objective(network, images, labels)
    start = time.perf_counter()
    found, (vector,) = eigenpairs(single)
    taken = time.perf_counter() - start
    (value,) = found.values
    double = objective(copy.deepcopy(network).double(), images.double(), labels)
    true, uncertain = reference(double, [part.double() for part in vector])
    difference = (abs(value - true) + uncertain) / abs(true)
    verdict = "within the bar" if difference <= BAR else "OVER THE BAR"
    cells = [f"{value:.5g}", str(found.products), f"{taken:.0f}", kind, f"{true:.5g}", f"{difference:.1e}", verdict]
    return [name, f"{found.parameters:,}", f"{found.samples:,}", *cells]


def dense(double: Objective, _: list[Tensor]) -> tuple[float, float]:
    values = np.linalg.eigvalsh(Counted(double).dense())
    return float(values[np.abs(values).argmax()]), 0.0


def lanczos(double: Objective, _: list[Tensor]) -> tuple[float, float]:
    return eigenvalues(double, tolerance=1e-6, seed=1).values[0], 0.0


def residual(double: Objective, vector: list[Tensor]) -> tuple[float, float]:
    length = norm(vector)
    v = [part / length for part in vector]
    product = double.hessian_product(v)
    quotient = dot(v, product)
    return quotient, norm([p - quotient * part for p, part in zip(product, v, strict=True)])


def objective(network: nn.Module, images: Tensor, labels: Tensor) -> Objective:
    return Objective(network, cross_entropy, list(zip(images.split(BATCH), labels.split(BATCH), strict=True)))


def trained(build: Callable[[], nn.Module], images: Tensor, labels: Tensor, steps: int) -> nn.Module:
    torch.manual_seed(0)
    network = build()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(steps):
        chosen = torch.randint(len(labels), (min(64, len(labels)),))
        optimizer.zero_grad()
        cross_entropy(network(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    return network.eval()


def small() -> nn.Module:
    """Build a network of 483 weights."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES),
    )  # fmt: skip


def drawn(count: int) -> tuple[Tensor, Tensor]:
    """Return a fixed draw of images of all domains."""
    data = shapes()
    domains = range(len(data.domains))
    pixels = torch.cat([torch.from_numpy(data.pixels[domain]) for domain in domains])
    labels = torch.cat([torch.from_numpy(data.labels(domain)) for domain in domains])
    chosen = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[:count]
    return evaluate_transform(pixels[chosen], Preprocessing(data.size[0])), labels[chosen]


if __name__ == "__main__":
    main()
