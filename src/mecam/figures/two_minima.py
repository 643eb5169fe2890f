"""Figure 2: a deep sharp minimum and a shallow flat one, in one dimension.

    f(x) = 1 − Σ depth exp(−(x − centre)² / (2 width²)) + 0.01 x²

SAM's loss, the highest f within rho, is lower at the sharp minimum. The curvature C = |f″| / (f′² + 1), which does not
depend on the depth, is lower at the flat one. At a minimum rho ∇f/‖∇f‖ has no direction, so SAM's loss is the maximum
over |e| ≤ rho that its first-order step stands for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mecam.analysis._figure import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {"sharp": "#D55E00", "flat": "#0072B2"}  # distinct for colour-blind readers
BOWL = 0.01
RHO = 0.15
Values = NDArray[np.float64]


class Well(NamedTuple):
    """The shape of a minimum."""

    centre: float
    depth: float
    width: float


class Minimum(NamedTuple):
    """A minimum, its loss and both measures of its sharpness."""

    x: float
    loss: float
    sam_loss: float
    curvature: float


WELLS = SHARP, FLAT = Well(-1.0, 0.9, 0.25), Well(1.2, 0.5, 0.8)
CENTRES, DEPTHS, WIDTHS = np.array(WELLS).T


def loss(x: Values) -> Values:
    """Return f."""
    return np.asarray(1 + BOWL * x**2 - _dips(x).sum(axis=-1))


def _dips(x: Values) -> Values:
    dips: Values = DEPTHS * np.exp(-((x[..., None] - CENTRES) ** 2) / (2 * WIDTHS**2))
    return dips


def curvature(x: Values) -> Values:
    """Return C = |f″| / (f′² + 1)."""
    from_centres, dips = x[..., None] - CENTRES, _dips(x)
    slope = 2 * BOWL * x + (from_centres / WIDTHS**2 * dips).sum(axis=-1)
    bend = 2 * BOWL + ((1 - (from_centres / WIDTHS) ** 2) / WIDTHS**2 * dips).sum(axis=-1)
    return np.asarray(np.abs(bend) / (slope**2 + 1))


def sam_loss(x: Values, rho: float = RHO) -> Values:
    """Return the highest f within rho, on 401 points."""
    highest: Values = loss(x[..., None] + np.linspace(-rho, rho, 401)).max(axis=-1)
    return highest


def measure(well: Well, rho: float = RHO) -> Minimum:
    """Find the minimum near the centre of a well, and measure it."""
    from scipy.optimize import minimize_scalar

    bounds = (well.centre - well.width / 2, well.centre + well.width / 2)
    x = float(minimize_scalar(lambda at: float(loss(np.array(at))), bounds=bounds, options={"xatol": 1e-10}).x)
    at = np.array(x)
    return Minimum(x, float(loss(at)), float(sam_loss(at, rho)), float(curvature(at)))


def figure(*_: object) -> Figure:
    """Draw (a) f and S, the highest f within rho, and (b) C, with both minima. No runs are needed."""
    x = np.linspace(-2.5, 3.5, 1201)
    drawn = new_figure(width=9, height=4)
    left, right = drawn.subplots(1, 2)
    left.plot(x, loss(x), color="0.2", label="f(θ)")
    left.plot(x, sam_loss(x), color="0.45", linestyle="--", label=f"S(θ), highest f within {RHO:g}")
    right.plot(x, curvature(x), color="0.2", label="C(θ) = |f″| / (f′² + 1)")
    for (name, colour), well, mark in zip(COLOURS.items(), WELLS, "os", strict=True):
        at = measure(well)
        words = f"{name} minimum: f = {at.loss:.2f} (filled), S = {at.sam_loss:.2f} (hollow)"
        left.plot([at.x], [at.loss], mark, color=colour, label=words)
        left.plot([at.x], [at.sam_loss], mark, color=colour, markerfacecolor="white")
        right.plot([at.x], [at.curvature], mark, color=colour, label=f"{name} minimum: C = {at.curvature:.2f}")
    left.set(title="(a) S is lower at the sharp minimum", xlabel="θ", ylabel="loss")
    right.set(title="(b) C is lower at the flat minimum", xlabel="θ", ylabel="C")
    for axes in (left, right):
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize="small", frameon=False)
    return drawn
