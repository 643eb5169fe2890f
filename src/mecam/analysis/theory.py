"""Lemma 3.1, Theorem 3.2 and Proposition 3.5 in the form in which they can be checked.

Lemma 3.1 reads λ_max(H) = C = ‖H‖ / (‖∇f‖² + 1). It holds where ∇f = 0, H has no negative eigenvalue and the norm is
the spectral one, max |λ|; elsewhere C (1 + ‖∇f‖²) is max |λ|, and `at_minimum` says by how much λ_max and C differ. C
does not depend on the loss value in the sense that C(f + c) = C(f); C(c f) is c C(f) only where ∇f = 0.

Theorem 3.2 reads H ≈ (f(θ+h) + f(θ−h) − 2f) / h², a matrix on the left and a number on the right. What holds, and
`central_difference` measures, is for h = rho u, u = ∇f/‖∇f‖

    (f(θ+rho u) + f(θ−rho u) − 2f(θ)) / rho² = uᵀHu + rho²/12 D⁴f[u,u,u,u] + O(rho⁴)

for an f with four derivatives. The slope of 2 was checked in float64 on a tanh network. Elsewhere two things spoil it:
- ReLU. H does not see its kinks, the quotient does, and shrinking rho does not help. resnet8 trained on shapes, 128
  images, float64: uᵀHu is 96.0, the quotient 88.0 at rho .01, 90.1 at .001, 88.8 at .0001.
- Rounding. The same in float32: 88.0, 90.2 and 94.3; f is 0.15, and 4 ε|f|/rho² is 7 at the last rho.
uᵀHu is the curvature along the gradient, which λ_max bounds from above.

Proposition 3.5 says of a virtual domain's loss m that alpha (f(θ−δ) − f) ≈ beta (m(θ−δ) − f) for a beta ≤ alpha. The
beta for which this is an equality is `beta_star`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mecam.analysis.curvature import exact
from mecam.analysis.objective import Objective, dot, norm
from mecam.analysis.spectrum import eigenvalues

RADII = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # where f is quadratic and no step is best
MULTIPLES = (8.0, 16.0, 32.0, 64.0)  # of the best step: truncation outweighs rounding


@dataclass(frozen=True)
class AtMinimum:
    """Lemma 3.1 at θ."""

    largest: float  # λ_max
    smallest: float  # λ_min
    gradient_norm: float
    curvature: float  # max |λ| / (‖∇f‖² + 1)
    tolerance: float  # of the eigenvalues

    @property
    def magnitude(self) -> float:
        """max |λ|"""
        return max(abs(self.largest), abs(self.smallest))

    @property
    def recovered(self) -> float:
        """C (1 + ‖∇f‖²), which is max |λ| everywhere."""
        return self.curvature * (1 + self.gradient_norm**2)

    @property
    def difference(self) -> float:
        """λ_max − C, which the lemma says is 0."""
        return self.largest - self.curvature

    @property
    def applies(self) -> bool:
        """Whether this is the lemma's case: no gradient and no negative eigenvalue, to the tolerance."""
        return self.gradient_norm**2 <= self.tolerance and self.smallest >= -self.tolerance * self.magnitude


@dataclass(frozen=True)
class CentralDifference:
    """Theorem 3.2 at θ, along u = ∇f/‖∇f‖."""

    rho: tuple[float, ...]
    quotient: tuple[float, ...]  # (f(θ+rho u) + f(θ−rho u) − 2f(θ)) / rho²
    error: tuple[float, ...]  # quotient − uᵀHu
    slope: float  # of log |error| over log rho: 2 where truncation is what is seen; NaN where an error is 0
    rayleigh: float  # uᵀHu, by a second backward
    largest_eigenvalue: float  # λ_max
    fourth: float  # D⁴f[u,u,u,u]
    best_rho: float  # (48 ε|f| / |fourth|)^¼, at which rounding and truncation are as large as each other
    loss: float
    gradient_norm: float
    epsilon: float  # of the weights' number format

    @property
    def share(self) -> float:
        """uᵀHu / λ_max: how much of the sharpest direction the gradient sees."""
        return self.rayleigh / self.largest_eigenvalue if self.largest_eigenvalue else math.nan


@dataclass(frozen=True)
class BetaStars:
    """Proposition 3.5 over the steps of a training."""

    defined: int  # steps with m(θ−δ) ≠ f(θ)
    positive: float  # share of them where beta* > 0
    allowed: float  # share of them where 0 < beta* ≤ alpha, as the paper asks

    def text(self) -> str:
        return (
            f"Proposition 3.5: beta* is positive in {self.positive:.0%} and in (0, alpha] in {self.allowed:.0%} of "
            f"{self.defined} records."
        )


def at_minimum(objective: Objective, *, tolerance: float = 1e-6, seed: int = 0) -> AtMinimum:
    """C, and both ends of the spectrum, each found by itself to a relative tolerance."""
    highest, lowest = (
        eigenvalues(objective, end=end, tolerance=tolerance, seed=seed).values[0] for end in ("highest", "lowest")
    )
    metric = exact(objective, tolerance=tolerance, seed=seed)
    return AtMinimum(highest, lowest, metric.gradient_norm, metric.curvature, tolerance)


def central_difference(
    objective: Objective, rho: Sequence[float] | None = None, *, tolerance: float = 1e-4, seed: int = 0
) -> CentralDifference:
    """The quotient at each rho against uᵀHu; without rho at multiples of the best one."""
    f, gradient = objective.value_and_gradient()
    length = norm(gradient)
    if not length or not math.isfinite(length):
        raise ValueError(f"‖∇f‖ is {length:g} here: there is no direction u to differentiate along")
    u = [part / length for part in gradient]
    rayleigh = dot(u, objective.hessian_product(u))
    epsilon = max(torch.finfo(parameter.dtype).eps for parameter in objective.parameters)
    fourth = fourth_derivative(objective, u, epsilon**0.25)
    best = best_rho(f, fourth, epsilon)
    if rho is None:
        rho = [best * multiple for multiple in MULTIPLES] if math.isfinite(best) and best else RADII
    quotients = [(objective.value(u, r) + objective.value(u, -r) - 2 * f) / r**2 for r in rho]
    errors = [quotient - rayleigh for quotient in quotients]
    return CentralDifference(
        rho=tuple(rho),
        quotient=tuple(quotients),
        error=tuple(errors),
        slope=_slope(rho, errors),
        rayleigh=rayleigh,
        largest_eigenvalue=eigenvalues(objective, end="highest", tolerance=tolerance, seed=seed).values[0],
        fourth=fourth,
        best_rho=best,
        loss=f,
        gradient_norm=length,
        epsilon=epsilon,
    )


def fourth_derivative(objective: Objective, u: Sequence[Tensor], step: float) -> float:
    """D⁴f[u,u,u,u], as the second difference of uᵀH(θ + t u)u: two derivatives are exact."""

    def along(t: float) -> float:
        with objective.moved(u, t):
            return dot(u, objective.hessian_product(u))

    return (along(step) + along(-step) - 2 * along(0.0)) / step**2


def best_rho(loss: float, fourth: float, epsilon: float) -> float:
    """The rho at which the quotient's error, at most rho²/12 |D⁴f| + 4 ε|f|/rho², is least."""
    return (48 * epsilon * abs(loss) / abs(fourth)) ** 0.25 if fourth else math.inf


def beta_star(alpha: float, minus: float, meta: float) -> float:
    """alpha (f(θ−δ) − f) / (m(θ−δ) − f), given the two gaps; NaN where the second is 0."""
    return alpha * minus / meta if meta else math.nan


def beta_stars(values: Sequence[tuple[float, float]]) -> BetaStars | None:
    """Signs of beta* and the share that lies where the paper wants it, given each step's alpha and beta*."""
    known = [(alpha, beta) for alpha, beta in values if math.isfinite(beta)]
    if not known:
        return None
    positive = sum(beta > 0 for _, beta in known) / len(known)
    return BetaStars(len(known), positive, sum(0 < beta <= alpha for alpha, beta in known) / len(known))


def _slope(rho: Sequence[float], errors: Sequence[float]) -> float:
    if len(rho) < 2 or not all(errors) or not all(map(math.isfinite, errors)):
        return math.nan
    return float(np.polyfit(np.log(rho), np.log(np.abs(errors)), 1)[0])
