"""Curvature while training, from what the passes of a step find anyway.

    tracker = Tracker(optimizer, every=10, path="tracking.jsonl")
    for step, batch in enumerate(batches):
        tracker.step(closure, step)      # in place of optimizer.step(closure)
    print(tracker.summary().text())

The paper's two principles are that curvature should matter little far from convergence and more near it. What should be
small far away is the second difference of the loss over the first,

    ratio = (f(θ+δ) + f(θ−δ) − 2f) / (f(θ+δ) − f(θ−δ)),   about rho uᵀHu / (2‖∇f‖),   u = ∇f/‖∇f‖

f(θ−δ) is at hand where a third pass is at θ−δ on the same data (CR-SAM, MeCAM without a virtual domain). Elsewhere a
logged step spends one more pass on it, if that is cheap (`every` ≥ 10) or `measure` asks for it. Otherwise it is
extrapolated by the cubic through f and its slopes along δ at θ and θ+δ, which the passes also give. The second
difference is then off by order rho⁴ on a smooth loss, and by more with ReLUs: on resnet8 (shapes, MeCAM and SAM) by 15
to 30 % in the median, with the wrong sign in up to one record of ten.

With dropout each pass draws its own mask, and the differences are mostly its noise, from which `summary` draws no
verdict: give the optimizer shared_noise=True, or the model no dropout.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from mecam.analysis.objective import norm
from mecam.analysis.theory import BetaStars, beta_star, beta_stars
from mecam.optim import CRSAM, FAD, GAM, GSAM, SAM, WSAM, MeCAM, SharpnessAware
from mecam.optim._buffers import Buffers
from mecam.optim._frozen import Frozen
from mecam.optim._noise import RandomState
from mecam.optim.last import LastStep
from mecam.runs import records

THETA, PLUS, MINUS, META = "theta", "plus", "minus", "meta"
# where the passes are: at θ, at θ+δ, at θ−δ; the others' second pass is elsewhere
PASSES: dict[type[SharpnessAware], tuple[str, ...]] = {
    CRSAM: (THETA, PLUS, MINUS),
    MeCAM: (THETA, PLUS, META),
    SAM: (THETA, PLUS),
    GSAM: (THETA, PLUS),
    WSAM: (THETA, PLUS),
    GAM: (THETA, PLUS),
    FAD: (THETA, PLUS),
}
SMALL = 0.1  # a ratio below this counts as small
FEWEST = 6  # records that a summary needs
CHEAP = 10  # steps between records at which one more pass costs little: 5 % of SAM's passes, 3.3 % of MeCAM's
Source = Literal["pass", "measured", "extrapolated"]


@dataclass(frozen=True)
class Record:
    """What one step showed; None where it does not fall out of the step. Losses and gaps in units of the loss."""

    step: int
    rho: float | None
    losses: dict[str, float | None]  # of each pass, by where it was: theta, plus, minus, meta, or its number
    norms: dict[str, float | None]  # of its gradient
    cosines: dict[str, float | None]  # between two gradients: "theta plus"
    f: float | None  # f(θ)
    plus: float | None  # f(θ+δ) − f(θ)
    minus: float | None  # f(θ−δ) − f(θ)
    minus_from: Source | None  # where f(θ−δ) was found
    meta: float | None  # m(θ−δ) − f(θ)
    numerator: float | None  # f(θ+δ) + f(θ−δ) − 2f(θ)
    curvature: float | None  # C, its magnitude over ‖∇f‖² + 1
    ratio: float | None  # numerator / (f(θ+δ) − f(θ−δ))
    alpha: float | None  # MeCAM's
    beta: float | None  # for which beta (m(θ−δ) − f) is alpha (f(θ−δ) − f): Proposition 3.5


@dataclass(frozen=True)
class Summary:
    """Whether curvature matters little far from convergence and more near it.

    Far are the third of the records with the highest loss, near the third with the lowest; numbers are medians.
    """

    records: int
    extrapolated: int  # of them, those with an extrapolated f(θ−δ)
    noisy: bool  # whether each pass had its own dropout masks, whose noise hides the differences
    far: float  # |ratio|
    near: float
    correlation: float  # Spearman's, of |ratio| with the loss: -1 where the ratio rises whenever the loss falls
    far_hessian: float | None  # uᵀHu, by numerator / rho²
    near_hessian: float | None
    betas: BetaStars | None  # Proposition 3.5, over all records that have a beta

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
        limit = "" if self.noisy else f" ({'small' if self.small_far else 'not small'}: the limit is {SMALL})"
        lines = [
            self._verdict(),
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

    def _verdict(self) -> str:
        if self.noisy:
            return (
                "No verdict: every pass drew its own dropout masks, and their noise hides the differences below. Train "
                "with --set optimizer_settings.shared_noise=true or --set dropout=0 to get one."
            )
        return (
            "Curvature should matter little far from convergence, and more near it: this run shows "
            f"{self.verdict}{' (extrapolated, see below)' if self.extrapolated else ''}."
        )


class Tracker:
    """Steps an optimizer and logs every `every`-th step.

    Args:
        optimizer: any sharpness-aware optimizer; its `track` is on in the logged steps only.
        every: steps from one record to the next.
        path: a file of JSON lines that records are added to; None keeps them in `records` alone.
        measure: spend a pass of the closure, in logged steps, on f(θ−δ) where no pass of the optimizer gives it. The
            training is the same, bit for bit. None: if `every` is at least 10.
        extrapolate: whether f(θ−δ) may be taken from the slopes. Switch it off where the closure leaves gradients that
            are not those of the loss it returns.
    """

    def __init__(
        self,
        optimizer: SharpnessAware,
        *,
        every: int = 1,
        path: Path | str | None = None,
        measure: bool | None = None,
        extrapolate: bool = True,
    ) -> None:
        if not isinstance(optimizer, SharpnessAware):
            raise TypeError(
                f"{type(optimizer).__name__} takes one pass a step; tracking needs a sharpness-aware optimizer"
            )
        if every < 1:
            raise ValueError(f"every={every} is not allowed; it must be at least 1")
        self.optimizer, self.every, self.path = optimizer, every, None if path is None else Path(path)
        self.measure, self.extrapolate = every >= CHEAP if measure is None else measure, extrapolate
        self.noisy = not optimizer.shared_noise and _drops(optimizer.model)
        self.records: list[Record] = []
        self._taken = 0
        if self.noisy:
            warnings.warn(
                "the model has dropout, and the optimizer no shared_noise=True: tracked differences between passes "
                "will be mostly the noise of its masks",
                stacklevel=2,
            )

    def step(self, closure: Callable[[], Any], number: int | None = None, **options: Any) -> Any:
        """optimizer.step(closure, **options), logged if it is this step's turn; `number` counts from 0 if not given."""
        number = self._taken if number is None else number
        self._taken = number + 1
        if number % self.every:
            return self.optimizer.step(closure, **options)
        optimizer = self.optimizer
        was_on, optimizer.track, optimizer.last = optimizer.track, True, None
        rho, alpha = _common(optimizer, "rho"), _common(optimizer, "alpha")
        names = _names(optimizer)
        # a gradient that carries a graph (AdaHessian's) does not outlive a change of the weights
        wanted = self.measure and MINUS not in names and not optimizer.needs_graph
        extra = _Minus(optimizer, closure, rho) if wanted and rho is not None else None
        try:
            loss = optimizer.step(closure if extra is None else extra, **options)
        finally:
            optimizer.track = was_on
        if optimizer.last is not None:
            measured = None if extra is None else extra.loss
            self._add(_record(number, optimizer.last, names, rho, alpha, measured, extrapolate=self.extrapolate))
        return loss

    def resume(self, after: int) -> None:
        """Go on after this step: take up what the file holds up to it, and cut off what comes later."""
        self._taken = after + 1
        if self.path is not None:
            records.cut(self.path, after)
            self.records = read(self.path)

    def summary(self) -> Summary:
        return summary(self.records, noisy=self.noisy)

    def _add(self, record: Record) -> None:
        self.records.append(record)
        if self.path is not None:
            records.append(self.path, asdict(record))


def read(path: Path | str) -> list[Record]:
    """The records in a file."""
    return [Record(**values) for values in records.read(Path(path))]


def summary(found: Sequence[Record], *, noisy: bool = False) -> Summary:
    """Summarize what the records show of the paper's two principles, and of Proposition 3.5.

    Args:
        noisy: whether each pass drew its own dropout masks.
    """
    known = [(abs(r.ratio), r.f, r) for r in found if r.ratio is not None and r.f is not None]
    if len(known) < FEWEST:
        raise ValueError(f"{len(known)} records have a ratio; at least {FEWEST} are needed for a summary")
    known.sort(key=lambda entry: -entry[1])
    ratios, losses = [entry[0] for entry in known], [entry[1] for entry in known]
    third = len(known) // 3
    varied = len(set(ratios)) > 1 and len(set(losses)) > 1
    ordered = [entry[2] for entry in known]
    return Summary(
        records=len(known),
        extrapolated=sum(record.minus_from == "extrapolated" for record in ordered),
        noisy=noisy,
        far=float(np.median(ratios[:third])),
        near=float(np.median(ratios[-third:])),
        correlation=float(spearmanr(ratios, losses).statistic) if varied else 0.0,
        far_hessian=_hessian(ordered[:third]),
        near_hessian=_hessian(ordered[-third:]),
        betas=beta_stars([(r.alpha, r.beta) for r in found if r.alpha is not None and r.beta is not None]),
    )


class _Minus:
    """A closure whose first call also finds the loss at θ−δ, and leaves no other trace of it."""

    def __init__(self, optimizer: SharpnessAware, closure: Callable[[], Any], rho: float) -> None:
        self.optimizer, self.closure, self.rho = optimizer, closure, rho
        self.loss: float | None = None
        self.called = False

    def __call__(self) -> Any:
        if self.called:
            return self.closure()
        self.called = True
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        noise = RandomState.now({parameter.device for parameter in parameters})
        buffers = Buffers(self.optimizer.model, Frozen(set(map(id, parameters)), by_value=True))
        with buffers.first():
            loss = self.closure()
        moved = [parameter for parameter in parameters if parameter.grad is not None]
        if loss is None or not moved:
            return loss
        kept = [parameter.grad for parameter in moved]
        # copies: DDP may hand out views into buckets that the next backward fills
        gradients = [parameter.grad.detach().clone() for parameter in moved]
        here = [parameter.detach().clone() for parameter in moved]
        scale = -self.rho / (norm(gradients) + 1e-12)
        try:
            with torch.no_grad():
                for parameter, gradient in zip(moved, gradients, strict=True):
                    parameter.grad = None
                    parameter.add_(gradient, alpha=scale)
            with noise.replayed(), buffers.watched(), torch.enable_grad():
                self.loss = float(torch.as_tensor(self.closure()).detach())
        finally:
            buffers.restore()
            with torch.no_grad():
                for parameter, weight, grad, gradient in zip(moved, here, kept, gradients, strict=True):
                    parameter.copy_(weight)
                    parameter.grad = grad.copy_(gradient)
        return loss


def _record(
    step: int,
    last: LastStep,
    names: tuple[str, ...],
    rho: float | None,
    alpha: float | None,
    measured: float | None,
    *,
    extrapolate: bool,
) -> Record:
    names = (*names, *(str(number) for number in range(len(names), len(last.losses))))[: len(last.losses)]
    losses = {name: _finite(loss) for name, loss in zip(names, last.losses, strict=True)}
    norms = {name: _finite(size) for name, size in zip(names, last.norms, strict=True)}
    cosines = {f"{names[i]} {names[j]}": _finite(cosine) for (i, j), cosine in last.cosines.items()}
    f, slope = losses[THETA], norms[THETA]
    plus, meta = _gap(losses.get(PLUS), f), _gap(losses.get(META), f)
    minus: float | None = None
    source: Source | None = None
    if MINUS in losses:
        minus, source = _gap(losses[MINUS], f), "pass"
    elif measured is not None:
        minus, source = _gap(_finite(measured), f), "measured"
    elif extrapolate:
        minus, source = _extrapolated(rho, slope, plus, norms.get(PLUS), cosines.get(f"{THETA} {PLUS}")), "extrapolated"
    numerator = None if plus is None or minus is None else plus + minus
    return Record(
        step=step,
        rho=rho,
        losses=losses,
        norms=norms,
        cosines=cosines,
        f=f,
        plus=plus,
        minus=minus,
        minus_from=None if minus is None else source,
        meta=meta,
        numerator=numerator,
        curvature=None if numerator is None or slope is None else abs(numerator) / (slope**2 + 1),
        ratio=None if plus is None or minus is None or numerator is None else _quotient(numerator, plus - minus),
        alpha=alpha,
        beta=None if alpha is None or minus is None or meta is None else _finite(beta_star(alpha, minus, meta)),
    )


def _extrapolated(
    rho: float | None, slope: float | None, plus: float | None, slope_plus: float | None, cosine: float | None
) -> float | None:
    """p(−1) − p(0) for the cubic p with the loss and its slope along δ at θ (t = 0) and at θ+δ (t = 1)."""
    if rho is None or slope is None or plus is None or slope_plus is None or cosine is None:
        return None
    first, last = rho * slope, rho * slope_plus * cosine
    cubic = first + last - 2 * plus
    return -first + (plus - first - cubic) - cubic


def _names(optimizer: SharpnessAware) -> tuple[str, ...]:
    """Where this optimizer's passes are, as far as that is known."""
    names = next((names for kind, names in PASSES.items() if isinstance(optimizer, kind)), (THETA,))
    plain = isinstance(optimizer, MeCAM) and optimizer.virtual_domain is None
    return (THETA, PLUS, MINUS) if plain else names


def _common(optimizer: SharpnessAware, name: str) -> float | None:
    """A hyperparameter, if there is one of this name and it is the same in every group; alpha is MeCAM's only."""
    if name not in optimizer.hyperparameters or (name == "alpha" and not isinstance(optimizer, MeCAM)):
        return None
    values = {float(group[name]) for group in optimizer.param_groups}
    return values.pop() if len(values) == 1 else None


def _drops(model: nn.Module | None) -> bool:
    modules = () if model is None else model.modules()
    return any(isinstance(module, _DropoutNd) and module.p > 0 for module in modules)


def _hessian(found: Iterable[Record]) -> float | None:
    values = [r.numerator / r.rho**2 for r in found if r.numerator is not None and r.rho]
    return float(np.median(values)) if values else None


def _gap(value: float | None, f: float | None) -> float | None:
    return None if value is None or f is None else value - f


def _quotient(over: float, under: float) -> float | None:
    return _finite(over / under) if under else None


def _finite(value: Tensor | float) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
