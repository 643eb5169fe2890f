"""Proposition 3.3, the PAC-Bayesian bound, term by term.

    E f(θ+ε) ≤ f̂ + alpha (f̂(θ+δ) + f̂(θ−δ) − 2f̂) + M/√n
               + √((k/4 log(1 + ‖θ‖² (1 + √(ln n / k))² / rho²) + 1/4 + log(n/zeta) + 2 log(6n + 3k)) / (n−1))

ε ~ N(0, σ²) in each of the k weights, σ = rho/(√k + √ln n); δ = rho ∇f̂/‖∇f̂‖; n samples; a loss in [0, M].

What is checked, since the statement leaves it open:
- Cross-entropy has no M. `bounded_cross_entropy` is min(CE, limit)/limit of each sample, so M = 1; the root, which
  comes from a bound for losses in [0, 1], is the right one then, and is multiplied by M otherwise.
- E f̂(θ+ε) ≤ f̂ + alpha (…) + M/√n is the step of the proof that its Taylor expansion is to give. It is measured, by
  Monte Carlo, and so is the left-hand side on data that was not trained on.
- For one δ the step reads f̂(θ+δ) − f̂ ≤ alpha (f̂(θ+δ) + f̂(θ−δ) − 2f̂). At the minimum of a quadratic it needs
  alpha ≥ ½; with a gradient it can need more than any alpha, since the left side is of first order in rho.
A bound above M says nothing: it is "vacuous".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from mecam.analysis.objective import Loss, Objective, norm


@dataclass(frozen=True)
class Expectation:
    """A Monte Carlo mean over Gaussian perturbations."""

    mean: float
    standard_error: float
    draws: int


@dataclass(frozen=True)
class Bound:
    """Every term, in units of the loss."""

    loss: float  # f̂(θ)
    plus: float  # f̂(θ+δ)
    minus: float  # f̂(θ−δ)
    regulariser: float  # alpha (f̂(θ+δ) + f̂(θ−δ) − 2f̂)
    tail: float  # M/√n
    complexity: float  # the root, times M
    gaussian: Expectation  # E f̂(θ+ε)
    gaussian_held_out: Expectation | None  # E f(θ+ε) on other data: what is bounded
    rho: float
    sigma: float
    alpha: float
    zeta: float
    largest: float  # M
    weights: int  # k
    weight_norm: float  # ‖θ‖
    samples: int  # n
    seed: int

    @property
    def bound(self) -> float:
        return self.loss + self.regulariser + self.tail + self.complexity

    @property
    def vacuous(self) -> bool:
        return self.bound > self.largest

    @property
    def alpha_needed(self) -> float:
        """The least alpha with f̂(θ+δ) − f̂ ≤ alpha (f̂(θ+δ) + f̂(θ−δ) − 2f̂); infinite if there is none."""
        rise, bend = self.plus - self.loss, self.plus + self.minus - 2 * self.loss
        if rise <= 0 and bend >= 0:
            return 0.0
        return rise / bend if bend > 0 else math.inf

    @property
    def step_holds(self) -> bool:
        """Whether the proof's step holds for δ at this alpha."""
        return self.plus - self.loss <= self.regulariser

    @property
    def gaussian_step_holds(self) -> bool:
        """Whether E f̂(θ+ε) ≤ f̂ + alpha (…) + M/√n, the step as the bound needs it."""
        return self.gaussian.mean <= self.loss + self.regulariser + self.tail

    def text(self) -> str:
        step = "holds" if self.step_holds else f"fails: alpha ≥ {self.alpha_needed:.3g} is needed"
        lines = [
            f"f̂(θ) {self.loss:.4g} + regulariser {self.regulariser:.3g} + M/√n {self.tail:.3g} + complexity "
            f"{self.complexity:.4g} = {self.bound:.4g}: {'vacuous' if self.vacuous else 'not vacuous'} "
            f"(the loss is at most {self.largest:g})",
            f"rho {self.rho:g}, sigma {self.sigma:.3g}, {self.weights:,} weights, {self.samples:,} samples, "
            f"zeta {self.zeta:g}",
            f"f̂(θ+δ) − f̂ ≤ alpha (f̂(θ+δ) + f̂(θ−δ) − 2f̂) at alpha {self.alpha:g} {step}",
            f"E f̂(θ+ε) {_text(self.gaussian)}: the proof's step {'holds' if self.gaussian_step_holds else 'fails'}",
        ]
        if self.gaussian_held_out is not None:
            lines.append(f"E f(θ+ε) on held-out data {_text(self.gaussian_held_out)}")
        return "\n".join(lines)


def bounded_cross_entropy(limit: float) -> Loss:
    """The mean of min(CE, limit)/limit: a loss in [0, 1]."""
    if not limit > 0:
        raise ValueError(f"limit={limit!r} is not allowed; it must be positive")

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(logits, targets, reduction="none").clamp(max=limit).mean() / limit

    return loss


def bound(
    objective: Objective,
    *,
    rho: float,
    alpha: float,
    largest: float = 1.0,
    zeta: float = 0.05,
    draws: int = 20,
    seed: int = 0,
    held_out: Objective | None = None,
) -> Bound:
    """Every term for the data of `objective`, taken to be the training set.

    Args:
        objective: with a loss in [0, largest], such as `bounded_cross_entropy`.
        held_out: the same model on data that was not trained on.
    """
    if not rho > 0 or not 0 < zeta < 1 or not largest > 0:
        raise ValueError(
            f"rho={rho!r}, zeta={zeta!r}, largest={largest!r}: rho and largest > 0, 0 < zeta < 1 are needed"
        )
    if objective.count < 2 or draws < 2:
        raise ValueError(f"{objective.count} samples and {draws} draws; at least 2 of each are needed")
    f, gradient = objective.value_and_gradient()
    if not -1e-6 * largest <= f <= largest * (1 + 1e-6):
        raise ValueError(f"the mean loss is {f:g}, outside [0, {largest:g}]; take bounded_cross_entropy or another M")
    length = norm(gradient)
    u = [part / (length + 1e-12) for part in gradient]
    plus, minus = objective.value(u, rho), objective.value(u, -rho)
    k, n = sum(parameter.numel() for parameter in objective.parameters), objective.count
    sigma = rho / (math.sqrt(k) + math.sqrt(math.log(n)))
    size = norm([parameter.detach() for parameter in objective.parameters])
    return Bound(
        loss=f,
        plus=plus,
        minus=minus,
        regulariser=alpha * (plus + minus - 2 * f),
        tail=largest / math.sqrt(n),
        complexity=largest * complexity(size, k=k, n=n, rho=rho, zeta=zeta),
        gaussian=gaussian_mean(objective, sigma, draws=draws, seed=seed),
        gaussian_held_out=None if held_out is None else gaussian_mean(held_out, sigma, draws=draws, seed=seed),
        rho=rho,
        sigma=sigma,
        alpha=alpha,
        zeta=zeta,
        largest=largest,
        weights=k,
        weight_norm=size,
        samples=n,
        seed=seed,
    )


def complexity(weight_norm: float, *, k: int, n: int, rho: float, zeta: float) -> float:
    """√((k/4 log(1 + ‖θ‖² (1 + √(ln n / k))² / rho²) + 1/4 + log(n/zeta) + 2 log(6n + 3k)) / (n−1))"""
    ratio = (weight_norm * (1 + math.sqrt(math.log(n) / k)) / rho) ** 2
    total = k / 4 * math.log1p(ratio) + 1 / 4 + math.log(n / zeta) + 2 * math.log(6 * n + 3 * k)
    return math.sqrt(total / (n - 1))


def gaussian_mean(objective: Objective, sigma: float, *, draws: int, seed: int = 0) -> Expectation:
    """E f(θ+ε), ε ~ N(0, σ²) in each weight; the same draws for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    values = []
    for _ in range(draws):
        noise = [torch.randn(p.shape, generator=generator).to(p.device, p.dtype) for p in objective.parameters]
        values.append(objective.value(noise, sigma))
    found = torch.tensor(values, dtype=torch.float64)
    return Expectation(float(found.mean()), float(found.std()) / math.sqrt(draws), draws)


def _text(found: Expectation) -> str:
    return f"{found.mean:.4g} ± {found.standard_error:.2g}"
