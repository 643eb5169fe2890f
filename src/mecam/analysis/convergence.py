"""Theorem 3.4 with explicit constants, on a smooth problem that is not convex.

For an L-smooth f, MeCAM over SGD with alpha = beta, no virtual domain, learning rate η₀/√t and radius rho₀/√t, and
unbiased gradients of norm at most G:

    1/T Σ E‖∇f(θₜ)‖² ≤ (C₁ + C₂ log T)/√T,       C₂ = 2 alpha L G rho₀ + ½ L G² η₀,  C₁ = (f₁ − f_min)/η₀ + C₂
    1/T Σ E‖∇f(θₜ±δₜ)‖² ≤ (C₃ + C₄ log T)/√T,    C₃ = 2C₁ + 2L² rho₀²,  C₄ = 2C₂ + 2L² rho₀²

The first: ‖∇f(θ±δ) − ∇f(θ)‖ ≤ L rho costs 2 alpha L G ηₜ rhoₜ a step, the step's length ½ L G² ηₜ²; sum over t with
Σ 1/t ≤ 1 + log T, and divide by ηₜ ≥ η₀/√T. The second: ‖∇f(θ±δ)‖² ≤ 2‖∇f(θ)‖² + 2L² rhoₜ². The paper's proof drops
Taylor remainders instead; here nothing is dropped.

The problem is f(x) = ½ Σ log(1 + x²): L = 1, ‖∇f‖ ≤ ½√d, f_min = 0, concave beyond |x| = 1. Noise is a vector of
random signs of length `noise`, drawn anew in every pass, so that G = ½√d + noise.

With a constant radius the second statement fails, as it must: δ does not shrink, and noise turns it about, so that
‖∇f(θ±δ)‖² stays near rho².
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from mecam.optim import MeCAM
from mecam.optim.schedules import RhoSchedule, constant, inverse_sqrt


@dataclass(frozen=True)
class Constants:
    """The bounds are (at_theta[0] + at_theta[1] log T)/√T at θ, and the same with `beside` at θ±δ."""

    at_theta: tuple[float, float]
    beside: tuple[float, float]

    def bound(self, steps: int) -> tuple[float, float]:
        """At θ, and at θ±δ."""
        (c1, c2), (c3, c4) = self.at_theta, self.beside
        log, root = math.log(steps), math.sqrt(steps)
        return (c1 + c2 * log) / root, (c3 + c4 * log) / root


@dataclass(frozen=True)
class Mean:
    """Mean squared gradient norms over the first `steps` steps, and their bounds."""

    steps: int
    theta: float  # at θ
    plus: float  # at θ+δ
    minus: float  # at θ−δ
    bound: float  # for theta
    bound_beside: float  # for plus and minus

    @property
    def holds(self) -> bool:
        return self.theta <= self.bound and max(self.plus, self.minus) <= self.bound_beside


@dataclass(frozen=True)
class Convergence:
    """Theorem 3.4 along one training."""

    means: tuple[Mean, ...]  # at rising numbers of steps
    constants: Constants
    start: tuple[float, ...]
    lr: float
    rho: float
    alpha: float
    noise: float
    decaying: bool  # whether the radius is rho/√t, as the theorem asks
    seed: int

    @property
    def holds(self) -> bool:
        """Whether every mean is under its bound."""
        return all(mean.holds for mean in self.means)


def constants(
    *, smoothness: float, largest_gradient: float, gap: float, lr: float, rho: float, alpha: float
) -> Constants:
    """C₁ to C₄ for an f with these L, G and f₁ − f_min."""
    L, G = smoothness, largest_gradient
    c2 = 2 * alpha * L * G * rho + L * G**2 * lr / 2
    c1 = gap / lr + c2
    return Constants((c1, c2), (2 * c1 + 2 * (L * rho) ** 2, 2 * c2 + 2 * (L * rho) ** 2))


def converge(
    start: Sequence[float],
    steps: int,
    *,
    lr: float = 0.1,
    rho: float = 0.5,
    alpha: float = 0.1,
    noise: float = 0.0,
    decaying: bool = True,
    seed: int = 0,
) -> Convergence:
    """Train from `start`; means are taken at powers of two of steps, and at the end."""
    if steps < 1:
        raise ValueError(f"steps={steps} is not allowed; there must be at least 1")
    generator = torch.Generator().manual_seed(seed)
    x = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    optimizer = MeCAM([x], torch.optim.SGD, lr=lr, rho=rho, alpha=alpha, beta=alpha)
    radius = RhoSchedule(optimizer, inverse_sqrt() if decaying else constant())
    rate = LambdaLR(optimizer, inverse_sqrt())
    found = constants(
        smoothness=1.0,
        largest_gradient=math.sqrt(len(x)) / 2 + noise,
        gap=float(loss(x.detach())),
        lr=lr,
        rho=rho,
        alpha=alpha,
    )
    places: list[Tensor] = []  # θ, θ+δ, θ−δ of this step: where the optimizer asked

    def closure() -> Tensor:
        optimizer.zero_grad()
        places.append(x.detach().clone())
        signs = torch.randint(0, 2, x.shape, generator=generator, dtype=x.dtype) * 2 - 1
        value = loss(x) + noise / math.sqrt(len(x)) * (signs * x).sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    total = torch.zeros(3, dtype=torch.float64)
    means = []
    for step in range(1, steps + 1):
        places.clear()
        optimizer.step(closure)
        total += (gradient(torch.stack(places)) ** 2).sum(1)
        rate.step()
        radius.step()
        if step & (step - 1) == 0 or step == steps:
            theta, plus, minus = (total / step).tolist()
            means.append(Mean(step, theta, plus, minus, *found.bound(step)))
    return Convergence(tuple(means), found, tuple(start), lr, rho, alpha, noise, decaying, seed)


def loss(x: Tensor) -> Tensor:
    """½ Σ log(1 + x²)"""
    return 0.5 * torch.log1p(x**2).sum()


def gradient(x: Tensor) -> Tensor:
    """x / (1 + x²)"""
    return x / (1 + x**2)
