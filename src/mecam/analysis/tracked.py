"""Read and plot the records of a tracked training, and summarize what they show of the paper's statements.

The paper's two principles: curvature should matter little far from convergence, and more near it. What should be small
far away is the second difference of the loss over the first,

    ratio = (f(θ+δ) + f(θ−δ) − 2f) / (f(θ+δ) − f(θ−δ)),   about rho uᵀHu / (2‖∇f‖),   u = ∇f/‖∇f‖

Proposition 3.5: alpha (f(θ−δ) − f) ≈ beta (m(θ−δ) − f) for a beta ≤ alpha. The beta that makes it an equality is beta*.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mecam.analysis._figure import new_figure, save
from mecam.runs import RunError, records

THETA, PLUS, MINUS, META = "theta", "plus", "minus", "meta"  # where the passes are
LINEAR = ("gaps", "cosines of gradients")  # panels of numbers that can be negative
SMALL = 0.1  # a ratio below this counts as small
FEWEST = 6  # records that a summary needs
Source = Literal["pass", "measured", "extrapolated"]


@dataclass(frozen=True)
class Record:
    """One tracked step; None where the step does not give a value. Losses and gaps are in units of the loss."""

    step: int
    rho: float | None
    losses: dict[str, float | None]  # of each pass, by where it was: theta, plus, minus, meta, or its number
    norms: dict[str, float | None]  # of its gradient
    cosines: dict[str, float | None]  # between two gradients: "theta plus"
    f: float | None  # f(θ)
    plus: float | None  # f(θ+δ) − f(θ)
    minus: float | None  # f(θ−δ) − f(θ)
    minus_from: Source | None  # where f(θ−δ) comes from
    meta: float | None  # m(θ−δ) − f(θ)
    numerator: float | None  # f(θ+δ) + f(θ−δ) − 2f(θ)
    curvature: float | None  # C, its magnitude over ‖∇f‖² + 1
    ratio: float | None  # numerator / (f(θ+δ) − f(θ−δ))
    alpha: float | None  # MeCAM's
    beta: float | None  # beta* = alpha (f(θ−δ) − f) / (m(θ−δ) − f)


@dataclass(frozen=True)
class BetaStars:
    """Proposition 3.5 over the steps of a training."""

    defined: int  # steps with m(θ−δ) ≠ f(θ)
    positive: float  # share of them where beta* > 0
    allowed: float  # share of them where 0 < beta* ≤ alpha, as the paper asks

    def text(self) -> str:
        """Return the shares as a sentence."""
        return (
            f"Proposition 3.5: beta* is positive in {self.positive:.0%} and in (0, alpha] in {self.allowed:.0%} of "
            f"{self.defined} records."
        )


@dataclass(frozen=True)
class Summary:
    """Whether curvature matters little far from convergence and more near it.

    Far are the third of the records with the highest loss, near the third with the lowest; numbers are medians.
    """

    records: int
    extrapolated: int  # records with an extrapolated f(θ−δ)
    noisy: bool  # whether each pass had its own dropout masks, whose noise hides the differences
    far: float  # |ratio|
    near: float
    correlation: float  # Spearman's, of |ratio| with the loss: -1 where the ratio rises whenever the loss falls
    far_hessian: float | None  # uᵀHu, by numerator / rho²
    near_hessian: float | None
    betas: BetaStars | None  # over all records that have a beta*

    @property
    def small_far(self) -> bool:
        return self.far < SMALL

    @property
    def grows(self) -> bool:
        return self.near > self.far and self.correlation < 0

    @property
    def verdict(self) -> str | None:
        """Which of the two principles the run shows; None if noise hides them."""
        if self.noisy:
            return None
        both = {(True, True): "both", (True, False): "the first only", (False, True): "the second only"}
        return both.get((self.small_far, self.grows), "neither")

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers and the verdict, for JSON."""
        return {**asdict(self), "verdict": self.verdict}

    def text(self) -> str:
        """Return the verdict, what it rests on, and what limits it."""
        if self.noisy:
            limit = ""
            verdict = (
                "No verdict: every pass drew its own dropout masks, and their noise hides the differences below. Train "
                "with --set optimizer_settings.shared_noise=true or --set dropout=0 to get one."
            )
        else:
            limit = f" ({'small' if self.small_far else 'not small'}: the limit is {SMALL})"
            verdict = (
                "Curvature should matter little far from convergence, and more near it: this run shows "
                f"{self.verdict}{' (extrapolated, see below)' if self.extrapolated else ''}."
            )
        lines = [
            verdict,
            f"Second over first difference of the loss, median |ratio| in {self.records} records: {self.far:.3g} far "
            f"from convergence{limit}, {self.near:.3g} near it. Rank correlation of |ratio| with "
            f"the loss: {self.correlation:+.2f}.",
        ]
        if self.far_hessian is not None and self.near_hessian is not None:
            lines.append(
                f"Median uᵀHu: {self.far_hessian:.3g} far, {self.near_hessian:.3g} near. The ratio also grows if only "
                "‖∇f‖ falls."
            )
        if self.betas is not None:
            lines.append(self.betas.text())
        if self.extrapolated:
            lines.append(
                f"Caution: f(θ−δ) is extrapolated in {self.extrapolated} of {self.records} records. With ReLUs the "
                "second difference is then off by 15 to 30 % in the median and sometimes has the wrong sign. "
                "--set track_measures=true measures f(θ−δ)."
            )
        return "\n".join(lines)


def read(path: Path | str) -> list[Record]:
    """Read the records in a file."""
    try:
        return [_checked(Record(**values)) for values in records.read(Path(path))]
    except TypeError as error:
        raise RunError(f"{path} does not hold the records of a tracked run: {error}") from error


def _checked(record: Record) -> Record:
    """Refuse a record that holds something other than numbers."""
    parts = (each.values() if isinstance(each, Mapping) else [each] for each in vars(record).values())
    for value in (value for part in parts for value in part):
        if value is not record.minus_from and not (value is None or isinstance(value, (int, float))):
            raise TypeError(f"{value!r} is not a number")
    return record


def summary(tracked: Sequence[Record], *, noisy: bool = False) -> Summary:
    """Summarize what the records show of the paper's two principles and of Proposition 3.5.

    Args:
        noisy: whether each pass drew its own dropout masks.
    """
    from scipy.stats import spearmanr  # slow to import

    known = [(abs(r.ratio), r.f, r) for r in tracked if r.ratio is not None and r.f is not None]
    if len(known) < FEWEST:
        raise ValueError(f"{len(known)} records have a ratio; at least {FEWEST} are needed for a summary")
    known.sort(key=lambda entry: -entry[1])
    ratios, losses, ordered = map(list, zip(*known, strict=True))
    third = len(known) // 3
    varied = len(set(ratios)) > 1 and len(set(losses)) > 1
    return Summary(
        records=len(known),
        extrapolated=sum(record.minus_from == "extrapolated" for record in ordered),
        noisy=noisy,
        far=float(np.median(ratios[:third])),
        near=float(np.median(ratios[-third:])),
        correlation=float(spearmanr(ratios, losses).statistic) if varied else 0.0,
        far_hessian=_hessian(ordered[:third]),
        near_hessian=_hessian(ordered[-third:]),
        betas=_beta_stars(tracked),
    )


def plot(steps: Sequence[Record], path: Path | str) -> Path:
    """Plot loss, gradient norm, gaps, curvature, ratio and cosines over the steps."""
    figure = new_figure(width=9, height=9)
    for axes, (title, curves) in zip(figure.subplots(3, 2, sharex=True).flat, panels(steps).items(), strict=True):
        axes.set(title=title, yscale="linear" if title in LINEAR else "log")
        for name, values in curves.items():
            axes.plot([r.step for r in steps], values, label=name, linewidth=1)
        if len(curves) > 1:
            axes.legend(fontsize="small")
    figure.supxlabel("step")
    return save(figure, path)


def panels(steps: Sequence[Record]) -> dict[str, dict[str, list[float]]]:
    """Return the curves by panel and name; NaN where a record has no value, and no curve without any."""
    guessed = [r.minus_from == "extrapolated" for r in steps]
    gaps = {
        "f(θ+δ) − f": [r.plus for r in steps],
        "f(θ−δ) − f": [None if guess else r.minus for guess, r in zip(guessed, steps, strict=True)],
        "f(θ−δ) − f, extrapolated": [r.minus if guess else None for guess, r in zip(guessed, steps, strict=True)],
        "m(θ−δ) − f": [r.meta for r in steps],
    }
    pairs = dict.fromkeys(pair for r in steps for pair in r.cosines)
    columns: dict[str, Mapping[str, Sequence[float | None]]] = {
        "f(θ)": {"loss": [r.f for r in steps]},
        "‖∇f‖": {"norm": [r.norms.get(THETA) for r in steps]},
        "gaps": gaps,
        "C": {"curvature": [r.curvature for r in steps]},
        "|ratio|": {"ratio": [None if r.ratio is None else abs(r.ratio) for r in steps]},
        "cosines of gradients": {pair: [r.cosines.get(pair) for r in steps] for pair in pairs},
    }
    return {
        title: {name: _with_nan(column) for name, column in curves.items() if set(column) != {None}}
        for title, curves in columns.items()
    }


def _with_nan(column: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in column]


def _beta_stars(tracked: Iterable[Record]) -> BetaStars | None:
    known = [(r.alpha, r.beta) for r in tracked if r.alpha is not None and r.beta is not None]
    if not known:
        return None
    positive = sum(beta > 0 for _, beta in known) / len(known)
    return BetaStars(len(known), positive, sum(0 < beta <= alpha for alpha, beta in known) / len(known))


def _hessian(tracked: Iterable[Record]) -> float | None:
    values = [r.numerator / r.rho**2 for r in tracked if r.numerator is not None and r.rho]
    return float(np.median(values)) if values else None
