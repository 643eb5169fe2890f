"""How curved the loss is around the weights: the paper's metric, and the measures of sharpness beside which it stands.

    C = |f(θ+δ) + f(θ−δ) − 2 f(θ)| / (‖∇f(θ)‖² + 1),   δ = rho ∇f/‖∇f‖      by differences: `curvature`
    C = |λ| / (‖∇f(θ)‖² + 1),   λ the eigenvalue of H of largest magnitude   as defined: `exact`

The denominator alone can reorder methods, so what it is made of is always reported with it. The numerator is about
rho² uᵀHu, u = ∇f/‖∇f‖: C/rho² is flat in rho where the loss is quadratic. The numerator can be negative, and in
float32 rounding adds up to 4 ε|f| to it, which counts where rho is small and the loss is flat. Where ∇f is 0 there is
no u, δ is 0 and so are the differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from mecam.analysis import spectrum
from mecam.analysis._figure import new_figure, save
from mecam.analysis.objective import Objective, norm

RADII = (0.01, 0.05, 0.1, 0.2, 0.5)  # the paper's
EPSILON = 1e-12  # as in the optimizers: v / (‖v‖ + EPSILON)


class VirtualDomain(Protocol):
    """Anything that can be switched on around a pass, such as mecam.virtual.MixStyle."""

    def active(self) -> AbstractContextManager[Any]: ...


@dataclass(frozen=True)
class At:
    """The loss around θ at one radius; in units of the loss, but for rho and scaled."""

    rho: float
    plus: float  # f(θ+δ) − f(θ): SAM's sharpness, and the gap of it in the objective of MeCAM
    minus: float  # f(θ−δ) − f(θ): the other gap, without a virtual domain
    numerator: float  # f(θ+δ) + f(θ−δ) − 2 f(θ), with its sign
    signed: float  # numerator / (‖∇f‖² + 1)
    curvature: float  # C, its magnitude
    scaled: float  # signed / rho²
    meta: float | None = None  # m(θ−δ) − f(θ): the other gap of the objective of MeCAM, on a virtual domain
    asam: float | None = None  # f(θ+e) − f(θ), e = rho θ² ∇f / ‖θ ∇f‖
    first_order: float | None = None  # rho ‖∇f(θ + rho n(Hu))‖, about rho times the largest gradient norm within rho


@dataclass(frozen=True)
class Curvature:
    """Curvature by differences, and what it was computed from."""

    loss: float  # f(θ)
    gradient_norm: float  # ‖∇f(θ)‖
    at: tuple[At, ...]  # one for each rho
    data: str
    samples: int
    dtype: str

    def to_dict(self, exact: Exact | None = None) -> dict[str, Any]:
        """For JSON, a list for each column; a number that is not finite is None."""
        columns = {name: [_number(getattr(at, name)) for at in self.at] for name in At.__dataclass_fields__}
        eigenvalue = {} if exact is None else {"largest_eigenvalue": exact.eigenvalue, "exact": asdict(exact)}
        return {
            "split": self.data,
            "images": self.samples,
            "dtype": self.dtype,
            "loss": _number(self.loss),
            "gradient_norm": _number(self.gradient_norm),
            **{name: column for name, column in columns.items() if any(value is not None for value in column)},
            **eigenvalue,
        }


@dataclass(frozen=True)
class Exact:
    """The metric as it is defined."""

    curvature: float  # |eigenvalue| / (‖∇f‖² + 1)
    eigenvalue: float  # of largest magnitude, with its sign
    gradient_norm: float
    tolerance: float  # of the eigenvalue, relative
    products: int  # Hessian-vector products it took
    data: str
    samples: int
    dtype: str


def curvature(
    objective: Objective,
    radii: Sequence[float] = RADII,
    *,
    virtual_domain: VirtualDomain | None = None,
    sharpness: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Curvature:
    """The metric by differences at each rho: a pass for f and ∇f, and two forward passes a rho.

    Args:
        virtual_domain: adds m(θ−δ) − f(θ), a forward pass a rho.
        sharpness: adds ASAM's and the first-order sharpness, a forward pass and a gradient a rho and one product with
            the Hessian.
        progress: told after each rho how many are done, and how many there are.
    """
    if not radii or not all(math.isfinite(rho) and rho > 0 for rho in radii):
        raise ValueError(f"radii={tuple(radii)!r} are not allowed; they must be positive numbers, at least one")
    f, gradient = objective.value_and_gradient()
    length = norm(gradient)
    if not math.isfinite(f) or not math.isfinite(length):
        raise FloatingPointError(f"f(θ) is {f:g} and ‖∇f(θ)‖ is {length:g}: there is no curvature to measure here")
    u = _unit(gradient)
    more = _sharpness(objective, f, gradient, u) if sharpness else None

    def at(rho: float) -> At:
        plus, minus = objective.value(u, rho) - f, objective.value(u, -rho) - f
        numerator = plus + minus
        signed = numerator / (length**2 + 1)
        meta = None
        if virtual_domain is not None:
            with virtual_domain.active():
                meta = objective.value(u, -rho) - f
        asam, first_order = (None, None) if more is None else more(rho)
        return At(rho, plus, minus, numerator, signed, abs(signed), signed / rho**2, meta, asam, first_order)

    found = []
    for rho in radii:
        found.append(at(float(rho)))
        if progress is not None:
            progress(len(found), len(radii))
    return Curvature(f, length, tuple(found), **_facts(objective))


def exact(
    objective: Objective,
    *,
    tolerance: float = 1e-3,
    seed: int = 0,
    progress: spectrum.Progress | None = None,
) -> Exact:
    """The metric as defined, by Lanczos on Hessian-vector products."""
    length = norm(objective.gradient())
    found = spectrum.eigenvalues(objective, tolerance=tolerance, seed=seed, progress=progress)
    (value,) = found.values
    return Exact(abs(value) / (length**2 + 1), value, length, tolerance, found.products, **_facts(objective))


def plot(rows: Mapping[str, Sequence[Curvature]], path: Path | str) -> Path:
    """Plot C against rho, both logarithmic; hollow where the numerator is negative. A grey line rises as rho².

    The runs of a row share a colour.
    """
    figure = new_figure()
    axes = figure.add_subplot(xlabel="rho", ylabel="C", xscale="log", yscale="log")
    guides: list[tuple[list[float], list[float]]] = []
    for name, runs in rows.items():
        color: Any = None
        for found in runs:
            shown = [at for at in found.at if math.isfinite(at.curvature) and at.curvature > 0]
            rho, values = [at.rho for at in shown], [at.curvature for at in shown]
            (line,) = axes.plot(rho, values, color=color, label=name if color is None else None)
            color = line.get_color()
            faces = ["none" if at.numerator < 0 else color for at in shown]
            axes.scatter(rho, values, facecolors=faces, edgecolors=color, zorder=3)
            if shown:
                guides.append((rho, [values[0] * (at.rho / rho[0]) ** 2 for at in shown]))
    for rho, guide in guides[:1]:
        axes.plot(rho, guide, color="grey", linewidth=0.8, linestyle=":", label="∝ rho²", zorder=0)
    axes.legend()
    return save(figure, path)


def _sharpness(
    objective: Objective, f: float, gradient: Sequence[Tensor], u: Sequence[Tensor]
) -> Callable[[float], tuple[float, float]]:
    """ASAM's and the first-order sharpness as functions of rho.

    The gradient norm rises fastest along its own gradient, ∇‖∇f‖ = Hu, whatever the radius.
    """
    theta = [parameter.detach().clone() for parameter in objective.parameters]
    scaled = [weight * slope for weight, slope in zip(theta, gradient, strict=True)]
    length = norm(scaled) + EPSILON
    adaptive = [weight * slope / length for weight, slope in zip(theta, scaled, strict=True)]
    uphill = _unit(objective.hessian_product(u))

    def at(rho: float) -> tuple[float, float]:
        return objective.value(adaptive, rho) - f, rho * norm(objective.gradient(uphill, rho))

    return at


def _unit(vector: Sequence[Tensor]) -> list[Tensor]:
    return list(torch._foreach_div(list(vector), norm(vector) + EPSILON))


def _facts(objective: Objective) -> dict[str, Any]:
    dtype = str(objective.parameters[0].dtype).removeprefix("torch.")
    return {"data": objective.name, "samples": objective.count, "dtype": dtype}


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
