"""Draws the pictures of docs/how-mecam-works.md: curvature.svg, passes.svg and update.svg.

python docs/pictures/how_mecam_works.py
"""

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.figures import two_minima
from mecam.optim import MeCAM

HERE = Path(__file__).parent
RADII = np.geomspace(0.01, 0.5, 12)
mpl.rcParams["svg.hashsalt"] = "mecam"  # equal figures, equal bytes


def passes(path: Path) -> None:
    """A loss in one dimension with the three points at which a step takes gradients."""

    def f(x: np.ndarray) -> np.ndarray:
        return 0.25 * x**4 - 0.2 * x**3 - 0.5 * x**2 + 1.2

    def m(x: np.ndarray) -> np.ndarray:
        return f(x) + 0.12 + 0.05 * np.sin(2.3 * x)

    x = np.linspace(-0.2, 2.4, 400)
    theta, rho = 1.75, 0.3
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.add_subplot(xlabel="θ", ylabel="loss")
    axes.plot(x, f(x), label="f, the batch")
    axes.plot(x, m(x), linestyle="--", label="m, the batch on a virtual domain")
    points = (("θ", theta, f, "black"), ("θ+δ", theta + rho, f, "tab:red"), ("θ−δ", theta - rho, m, "tab:green"))
    for name, at, curve, colour in points:
        height = float(curve(np.array(at)))
        axes.plot([at], [height], "o", color=colour)
        axes.annotate(name, (at, height), textcoords="offset points", xytext=(-4, 10), ha="right", color=colour)
    axes.legend(loc="upper left")
    save(figure, path)


def update(path: Path) -> None:
    """How far MeCAM's update is from the gradient, against rho."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="ρ", ylabel="‖update − ∇f‖ / ‖∇f‖", xscale="log", yscale="log")
    cases = (
        ("quadratic, α = β = 0.1", quadratic, 0.1, 0.1),
        ("quadratic, α = 0.2, β = 0.1", quadratic, 0.2, 0.1),
        ("tanh network, α = β = 0.1", network, 0.1, 0.1),
        ("tanh network, α = 0.2, β = 0.1", network, 0.2, 0.1),
    )
    for label, problem, alpha, beta in cases:
        axes.plot(RADII, [departure(problem, rho, alpha, beta) for rho in RADII], "o-", markersize=3, label=label)
    axes.legend()
    save(figure, path)


Problem = Callable[[], tuple[list[Tensor], Callable[[], Tensor]]]


def quadratic() -> tuple[list[Tensor], Callable[[], Tensor]]:
    """θᵀHθ / 2 in 20 dimensions."""
    torch.manual_seed(0)
    half = torch.randn(20, 20, dtype=torch.float64)
    hessian, theta = half @ half.T, torch.randn(20, dtype=torch.float64, requires_grad=True)
    return [theta], lambda: 0.5 * theta @ hessian @ theta


def network() -> tuple[list[Tensor], Callable[[], Tensor]]:
    """Cross-entropy of a small tanh network."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    x, y = torch.randn(32, 6).double(), torch.randint(0, 3, (32,))
    return list(model.parameters()), lambda: F.cross_entropy(model(x), y)


def departure(problem: Problem, rho: float, alpha: float, beta: float) -> float:
    """‖update − ∇f‖ / ‖∇f‖; the update is what SGD at learning rate 1 does with it."""
    parameters, loss = problem()
    gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss(), parameters)])
    before = torch.cat([parameter.detach().flatten() for parameter in parameters])
    optimizer = MeCAM(parameters, torch.optim.SGD, lr=1.0, rho=float(rho), alpha=alpha, beta=beta)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)
    moved = before - torch.cat([parameter.detach().flatten() for parameter in parameters])
    return ((moved - gradient).norm() / gradient.norm()).item()


def save(figure: Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})


def main(folder: Path = HERE) -> None:
    save(two_minima.figure(), folder / "curvature.svg")
    passes(folder / "passes.svg")
    update(folder / "update.svg")


if __name__ == "__main__":
    main()
