"""Measure how curved the loss is around the weights: the paper's metric, and other measures of sharpness.

    C = |f(θ+δ) + f(θ−δ) − 2 f(θ)| / (‖∇f(θ)‖² + 1),   δ = rho ∇f/‖∇f‖      by differences: `curvature`
    C = |λ| / (‖∇f(θ)‖² + 1),   λ the eigenvalue of H of largest magnitude   as defined: `exact`

The denominator alone can reorder methods, so ‖∇f‖ and the numerator are always reported too. The numerator is about
rho² uᵀHu, u = ∇f/‖∇f‖, and can be negative: C/rho² is constant in rho where the loss is quadratic. In float32, rounding
adds up to 4 ε|f| to it, which matters where rho is small and the loss is flat. Where ∇f is 0, so are δ and the
differences.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from mecam.analysis import spectrum
from mecam.analysis._figure import new_figure, save
from mecam.analysis.directions import gaussian
from mecam.analysis.objective import Objective, norm
from mecam.optim._passes import VirtualDomain
from mecam.progress import Event, Progress, silent

RADII = (0.01, 0.05, 0.1, 0.2, 0.5)  # the paper's
EPSILON = 1e-12  # as in the optimizers: v / (‖v‖ + EPSILON)


@dataclass(frozen=True)
class At:
    """The loss around θ at one radius, in units of the loss except for rho and scaled."""

    rho: float
    plus: float  # f(θ+δ) − f(θ): SAM's sharpness, and the first gap in MeCAM's objective
    minus: float  # f(θ−δ) − f(θ): the second gap, without a virtual domain
    numerator: float  # f(θ+δ) + f(θ−δ) − 2 f(θ), with its sign
    signed: float  # numerator / (‖∇f‖² + 1)
    curvature: float  # C, its magnitude
    scaled: float  # signed / rho²
    meta: float | None = None  # m(θ−δ) − f(θ): the second gap, on a virtual domain
    asam: float | None = None  # f(θ+e) − f(θ), e = rho θ² ∇f / ‖θ ∇f‖
    first_order: float | None = None  # rho ‖∇f(θ + rho n(Hu))‖, about rho times the largest gradient norm within rho
    average: float | None = None  # E f(θ + rho z/‖z‖) − f(θ), z Gaussian: about rho² tr H / 2n for n weights
    adaptive_average: float | None = None  # E f(θ + rho θ z) − f(θ): the same if units of a network are rescaled


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
        """Return a list for each column, for JSON; a number that is not finite is None."""
        columns = {name: [finite(getattr(at, name)) for at in self.at] for name in At.__dataclass_fields__}
        eigenvalue = {} if exact is None else {"largest_eigenvalue": exact.eigenvalue, "exact": asdict(exact)}
        return {
            "split": self.data,
            "images": self.samples,
            "dtype": self.dtype,
            "loss": finite(self.loss),
            "gradient_norm": finite(self.gradient_norm),
            **{name: column for name, column in columns.items() if any(value is not None for value in column)},
            **eigenvalue,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read what `to_dict` returned; columns that are not there are None."""
        columns = [content.get(name, [None] * len(content["rho"])) for name in At.__dataclass_fields__]
        at = tuple(At(*values) for values in zip(*columns, strict=True))
        return cls(content["loss"], content["gradient_norm"], at, *(content[n] for n in ("split", "images", "dtype")))


@dataclass(frozen=True)
class Exact:
    """The metric as defined."""

    curvature: float  # |eigenvalue| / (‖∇f‖² + 1)
    eigenvalue: float  # of largest magnitude, with its sign
    gradient_norm: float
    tolerance: float  # of the eigenvalue, relative
    products: int  # Hessian-vector products it took
    data: str
    samples: int
    dtype: str

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read the eigenvalue that `mecam bench --measure eigenvalue` stored; what needs ‖∇f‖ is None."""
        rest = content["tolerance"], content.get("products", 0), content["split"], content["images"], "float32"
        return cls(None, content["largest_eigenvalue"], None, *rest)  # type: ignore[arg-type]


def curvature(
    objective: Objective,
    radii: Sequence[float] = RADII,
    *,
    virtual_domain: VirtualDomain | None = None,
    sharpness: bool = False,
    average: int = 0,
    progress: Progress = silent,
) -> Curvature:
    """Measure the metric by differences at each rho: one pass for f and ∇f, and two forward passes per rho.

    Args:
        virtual_domain: adds m(θ−δ) − f(θ), one forward pass per rho.
        sharpness: adds ASAM's and the first-order sharpness: one product with the Hessian, and a forward pass and a
            gradient per rho.
        average: number of random directions over which to average the rise of the loss, each with its opposite: four
            forward passes per direction and rho.
        progress: called after each rho.
    """
    if not radii or not all(math.isfinite(rho) and rho > 0 for rho in radii):
        raise ValueError(f"radii={tuple(radii)!r} are not allowed; they must be positive numbers, at least one")
    f, gradient = objective.value_and_gradient()
    length = norm(gradient)
    if not math.isfinite(f) or not math.isfinite(length):
        raise FloatingPointError(f"f(θ) is {f:g} and ‖∇f(θ)‖ is {length:g}: there is no curvature to measure here")
    u = _unit(gradient)
    if sharpness:
        uphill = _unit(objective.hessian_product(u))  # where ‖∇f‖ rises fastest: ∇‖∇f‖ = Hu
        theta = [parameter.detach().clone() for parameter in objective.parameters]
        adaptive = torch._foreach_mul(theta, _unit(torch._foreach_mul(theta, gradient)))

    def at(rho: float) -> At:
        plus, minus = objective.value(u, rho) - f, objective.value(u, -rho) - f
        numerator = plus + minus
        signed = numerator / (length**2 + 1)
        meta = None
        if virtual_domain is not None:
            with virtual_domain.active():
                meta = objective.value(u, -rho) - f
        asam = objective.value(adaptive, rho) - f if sharpness else None
        first_order = rho * norm(objective.gradient(uphill, rho)) if sharpness else None
        averages = _averages(objective, f, rho, average) if average else (None, None)
        return At(rho, plus, minus, numerator, signed, abs(signed), signed / rho**2, meta, asam, first_order, *averages)

    values = []
    for rho in radii:
        values.append(at(float(rho)))
        progress(Event("curvature", len(values), len(radii), "radii"))
    return Curvature(f, length, tuple(values), **objective.facts())


def _averages(objective: Objective, f: float, rho: float, count: int) -> tuple[float, float]:
    """Return the mean rise along random directions and their opposites: of length rho, and with noise rho θ z."""
    rises: list[list[float]] = []
    for seed in range(count):
        z = gaussian(objective.parameters, torch.Generator().manual_seed(seed))
        ways = _unit(z), list(torch._foreach_mul(objective.parameters, z))
        rises.append([objective.value(way, rho) / 2 + objective.value(way, -rho) / 2 - f for way in ways])
    plain, scaled = (statistics.fmean(column) for column in zip(*rises, strict=True))
    return plain, scaled


def exact(objective: Objective, *, tolerance: float = 1e-3, seed: int = 0, progress: Progress = silent) -> Exact:
    """Measure the metric as defined, by Lanczos on Hessian-vector products."""
    length = norm(objective.gradient())
    largest = spectrum.eigenvalues(objective, tolerance=tolerance, seed=seed, progress=progress)
    (value,) = largest.values
    return Exact(abs(value) / (length**2 + 1), value, length, tolerance, largest.products, **objective.facts())


def plot(rows: Mapping[str, Sequence[Curvature]], path: Path | str) -> Path:
    """Plot C against rho, both logarithmic; hollow where the numerator is negative. A grey line rises as rho².

    The runs of a row share a colour.
    """
    figure = new_figure()
    axes = figure.add_subplot(xlabel="rho", ylabel="C", xscale="log", yscale="log")
    guides: list[tuple[list[float], list[float]]] = []
    for name, runs in rows.items():
        color: Any = None
        for run in runs:
            shown = [at for at in run.at if math.isfinite(at.curvature) and at.curvature > 0]
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


def _unit(vector: Sequence[Tensor]) -> list[Tensor]:
    return list(torch._foreach_div(list(vector), norm(vector) + EPSILON))


def finite(value: float | None) -> float | None:
    """Return a finite number as it is, any other as None, for JSON."""
    return value if value is not None and math.isfinite(value) else None
