"""The paper's Figure 2 in one dimension: a deep sharp minimum and a shallow flat one.

    f(x) = 1 − Σ depth exp(−(x − centre)² / (2 width²)) + 0.01 x²

SAM's loss, the highest f within rho, is lower at the sharp minimum, because that is so much deeper; the curvature
C = |f″| / (f′² + 1), which does not see the depth, is lower at the flat one. At a minimum ∇f is 0 and rho ∇f/‖∇f‖ has
no direction, so SAM's loss is taken as what its first-order step stands for: the maximum over |e| ≤ rho.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from mecam.analysis._figure import new_figure, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARP_COLOUR, FLAT_COLOUR = "#D55E00", "#0072B2"  # told apart by colour-blind readers too
BOWL = 0.01
RHO = 0.15
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Well:
    """A minimum's shape."""

    centre: float
    depth: float
    width: float


SHARP, FLAT = Well(-1.0, 0.9, 0.25), Well(1.2, 0.5, 0.8)


@dataclass(frozen=True)
class Minimum:
    """What the two measures say of a minimum."""

    x: float
    loss: float
    sam_loss: float  # the highest f within rho
    curvature: float  # C


@dataclass(frozen=True)
class Demonstration:
    """Both minima, and the radius SAM looked within."""

    sharp: Minimum
    flat: Minimum
    rho: float

    @property
    def sam_prefers(self) -> str:
        return "sharp" if self.sharp.sam_loss < self.flat.sam_loss else "flat"

    @property
    def curvature_prefers(self) -> str:
        return "sharp" if self.sharp.curvature < self.flat.curvature else "flat"


def demonstration(rho: float = RHO) -> Demonstration:
    """Find both minima and measure them."""
    if not rho > 0:
        raise ValueError(f"rho={rho!r} is not allowed; it must be positive")
    return Demonstration(_minimum(SHARP, rho), _minimum(FLAT, rho), rho)


def loss(x: Values) -> Values:
    """f"""
    return 1 + BOWL * x**2 - sum((_bump(x, well) for well in (SHARP, FLAT)), np.zeros_like(x))


def slope(x: Values) -> Values:
    """f′"""
    wells = (SHARP, FLAT)
    return 2 * BOWL * x + sum(((x - w.centre) / w.width**2 * _bump(x, w) for w in wells), np.zeros_like(x))


def bend(x: Values) -> Values:
    """f″"""
    parts = ((1 - ((x - w.centre) / w.width) ** 2) / w.width**2 * _bump(x, w) for w in (SHARP, FLAT))
    return 2 * BOWL + sum(parts, np.zeros_like(x))


def curvature(x: Values) -> Values:
    """C = |f″| / (f′² + 1)"""
    return np.abs(bend(x)) / (slope(x) ** 2 + 1)


def sam_loss(x: Values, rho: float) -> Values:
    """The highest f within rho, on 401 points."""
    highest: Values = loss(x[..., None] + np.linspace(-rho, rho, 401)).max(axis=-1)
    return highest


def plot(path: Path | str, rho: float = RHO) -> Path:
    """Write the figure."""
    return save(draw(rho), path)


def draw(rho: float = RHO) -> Figure:
    """(a) f and S, the highest f within rho; (b) C along the curve; both minima marked."""
    found = demonstration(rho)
    x = np.linspace(-2.5, 3.5, 1201)
    figure = new_figure(width=9, height=4)
    left, right = figure.subplots(1, 2)
    left.plot(x, loss(x), color="0.2", label="f(θ)")
    left.plot(x, sam_loss(x, rho), color="0.45", linestyle="--", label=f"S(θ), highest f within {rho:g}")
    right.plot(x, curvature(x), color="0.2", label="C(θ) = |f″| / (f′² + 1)")
    for name, at, colour, mark in (("sharp", found.sharp, SHARP_COLOUR, "o"), ("flat", found.flat, FLAT_COLOUR, "s")):
        words = f"{name} minimum: f = {at.loss:.2f} (filled), S = {at.sam_loss:.2f} (hollow)"
        left.plot([at.x], [at.loss], mark, color=colour, label=words)
        left.plot([at.x], [at.sam_loss], mark, color=colour, markerfacecolor="white")
        right.plot([at.x], [at.curvature], mark, color=colour, label=f"{name} minimum: C = {at.curvature:.2f}")
    left.set(title=f"(a) S is lower at the {found.sam_prefers} minimum", xlabel="θ", ylabel="loss")
    right.set(title=f"(b) C is lower at the {found.curvature_prefers} minimum", xlabel="θ", ylabel="C")
    for axes in (left, right):
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize="small", frameon=False)
    return figure


def figure(*_: object) -> Figure:
    """Figure 2; it needs no runs."""
    return draw()


def _minimum(well: Well, rho: float) -> Minimum:
    """The root of f′ within half a width of the well's centre."""
    x = float(brentq(lambda at: float(slope(np.array(at))), well.centre - well.width / 2, well.centre + well.width / 2))
    at = np.array(x)
    return Minimum(x, float(loss(at)), float(sam_loss(at, rho)), float(curvature(at)))


def _bump(x: Values, well: Well) -> Values:
    bump: Values = well.depth * np.exp(-((x - well.centre) ** 2) / (2 * well.width**2))
    return bump
