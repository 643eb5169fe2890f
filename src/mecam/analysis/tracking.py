"""Track curvature while training, from what the passes of a step compute anyway.

    tracker = Tracker(optimizer, every=10, path="tracking.jsonl")
    for step, batch in enumerate(batches):
        tracker.step(closure, step)      # in place of optimizer.step(closure)
    print(tracker.summary().text())

f(θ−δ) is known where a third pass is at θ−δ on the same data (CR-SAM, MeCAM without a virtual domain). Elsewhere a
tracked step spends one more pass on it, if that is cheap (`every` ≥ 10) or `measure` asks for it. Otherwise it is
extrapolated by the cubic through f and its slopes along δ at θ and θ+δ, which the passes also give. The second
difference is then off by order rho⁴ on a smooth loss, and by more with ReLUs: on resnet8 (shapes, MeCAM and SAM) by 15
to 30 % in the median, with the wrong sign in up to one record of ten.

With dropout each pass draws its own mask, and the differences are mostly noise, so `summary` gives no verdict: give the
optimizer shared_noise=True, or the model no dropout.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from mecam.analysis.tracked import META, MINUS, PLUS, THETA, Record, Source, Summary, read, summary
from mecam.optim import CRSAM, FAD, GAM, GSAM, SAM, WSAM, MeCAM, SharpnessAware
from mecam.optim._buffers import Buffers
from mecam.optim._frozen import Frozen
from mecam.optim._passes import NoGradientError, Passes
from mecam.optim._update import Update
from mecam.optim.last import LastStep, as_number
from mecam.optim.vector import Space, unit
from mecam.runs import records, write_atomic
from mecam.storage.files import Write

# where the passes are; the second pass of optimizers that are not listed is elsewhere
PASSES: dict[type[SharpnessAware], tuple[str, ...]] = {
    CRSAM: (THETA, PLUS, MINUS),
    MeCAM: (THETA, PLUS, META),
    **dict.fromkeys((SAM, GSAM, WSAM, GAM, FAD), (THETA, PLUS)),
}
CHEAP = 10  # steps between records at which one more pass costs little: 5 % of SAM's passes, 3.3 % of MeCAM's


class Tracker:
    """Step an optimizer and record every `every`-th step.

    Args:
        optimizer: a sharpness-aware optimizer with several passes per step; its `track` is on in recorded steps only.
        every: steps from one record to the next.
        path: a file of JSON lines that records are added to; None keeps them in `records` alone.
        measure: spend a pass of the closure, in recorded steps, on f(θ−δ) where no pass of the optimizer gives it. The
            training is the same, bit for bit. None: if `every` is at least 10.
        extrapolate: whether f(θ−δ) may be taken from the slopes. Switch it off where the closure leaves gradients that
            are not those of the loss it returns.
        write: replaces the content of the file.
    """

    def __init__(
        self,
        optimizer: SharpnessAware,
        *,
        every: int = 1,
        path: Path | str | None = None,
        measure: bool | None = None,
        extrapolate: bool = True,
        write: Write = write_atomic,
    ) -> None:
        if not isinstance(optimizer, SharpnessAware) or optimizer.passes == 1:
            raise TypeError(
                f"{type(optimizer).__name__} takes one pass per step; tracking needs an optimizer with several, such "
                "as SAM"
            )
        if every < 1:
            raise ValueError(f"every={every} is not allowed; it must be at least 1")
        self.optimizer, self.every, self.path = optimizer, every, None if path is None else Path(path)
        self.write = write
        self.measure, self.extrapolate = every >= CHEAP if measure is None else measure, extrapolate
        self.noisy = not optimizer.shared_noise and _has_dropout(optimizer.model)
        self.records: list[Record] = []
        self._taken = 0
        if self.noisy:
            warnings.warn(
                "the model has dropout, and the optimizer no shared_noise=True: tracked differences between passes "
                "will be mostly the noise of its masks",
                stacklevel=2,
            )

    def step(self, closure: Callable[[], Any], number: int | None = None, **options: Any) -> Any:
        """Take optimizer.step(closure, **options), recorded if it is this step's turn.

        `number` counts from 0 if not given.
        """
        number = self._taken if number is None else number
        self._taken = number + 1
        optimizer = self.optimizer
        if number % self.every:
            return optimizer.step(closure, **options)
        was_on, optimizer.track, optimizer.last = optimizer.track, True, None
        rho, alpha = _common(optimizer, "rho"), _common(optimizer, "alpha")
        names = _names(optimizer)
        # a gradient that carries a graph (AdaHessian's) does not outlive a change of the weights
        wanted = self.measure and MINUS not in names and not optimizer.needs_graph and not math.isnan(rho)
        extra = _AlsoAtMinus(optimizer, closure, rho) if wanted else None
        try:
            loss = optimizer.step(closure if extra is None else extra, **options)
        finally:
            optimizer.track = was_on
        if optimizer.last is not None:
            measured = None if extra is None else float(as_number(extra.loss))
            record = _record(number, optimizer.last, names, rho, alpha, measured, extrapolate=self.extrapolate)
            self.records.append(record)
            if self.path is not None:
                records.append(self.path, asdict(record), self.write)
        return loss

    def resume(self, after: int) -> None:
        """Resume after this step: read the file up to it, and remove later records."""
        self._taken = after + 1
        if self.path is not None:
            records.cut(self.path, after, self.write)
            self.records = read(self.path)

    def summary(self) -> Summary:
        return summary(self.records, noisy=self.noisy)


class _AlsoAtMinus:
    """A closure whose first call also computes the loss at θ−δ, and leaves no other trace of it."""

    def __init__(self, optimizer: SharpnessAware, closure: Callable[[], Any], rho: float) -> None:
        self.optimizer, self.closure, self.rho = optimizer, closure, rho
        self.loss: Any = math.nan
        self.called = False

    @torch.no_grad()
    def __call__(self) -> Any:
        if self.called:
            with torch.enable_grad():
                return self.closure()
        self.called = True
        space = Space(self.optimizer.param_groups)
        buffers = Buffers(self.optimizer.model, Frozen(space.ids, by_value=True))
        passes = Passes(space, self.closure, buffers=buffers, shared_noise=True)
        try:
            gradient = passes.grad_at()
        except NoGradientError as error:
            return error.loss
        try:
            passes.grad_at(-self.rho * unit(gradient))
        finally:
            passes.restore()
            Update(space, gradient, shift=None, hessian=None).write()
        loss, self.loss = passes.losses
        return loss


def _record(
    step: int,
    last: LastStep,
    names: tuple[str, ...],
    rho: float,
    alpha: float,
    measured: float | None,
    *,
    extrapolate: bool,
) -> Record:
    """Return the record of a step. Numbers that are unknown or not finite are NaN here, and None in the record."""
    names = (*names, *(str(number) for number in range(len(names), len(last.losses))))
    losses = {name: _finite(loss) for name, loss in zip(names, last.losses, strict=False)}
    norms = {name: _finite(size) for name, size in zip(names, last.norms, strict=False)}
    cosines = {f"{names[i]} {names[j]}": _finite(cosine) for (i, j), cosine in last.cosines.items()}
    f, slope = losses[THETA], norms[THETA]
    plus, meta = losses.get(PLUS, math.nan) - f, losses.get(META, math.nan) - f
    source: Source | None = None
    minus = math.nan
    if MINUS in losses:
        minus, source = losses[MINUS] - f, "pass"
    elif measured is not None:
        minus, source = _finite(measured) - f, "measured"
    elif extrapolate:  # by the cubic with these slopes along δ at θ and θ+δ
        first, last_slope = rho * slope, rho * norms.get(PLUS, math.nan) * cosines.get(f"{THETA} {PLUS}", math.nan)
        minus, source = 5 * plus - 4 * first - 2 * last_slope, "extrapolated"
    numerator = plus + minus
    values = {
        "rho": rho,
        "f": f,
        "plus": plus,
        "minus": minus,
        "meta": meta,
        "numerator": numerator,
        "curvature": abs(numerator) / (slope**2 + 1),
        "ratio": numerator / (plus - minus) if plus != minus else math.nan,
        "alpha": alpha,
        "beta": alpha * minus / meta if meta else math.nan,
    }
    return Record(
        step,
        losses=_known(losses),
        norms=_known(norms),
        cosines=_known(cosines),
        minus_from=source if math.isfinite(minus) else None,
        **_known(values),
    )


def _names(optimizer: SharpnessAware) -> tuple[str, ...]:
    """Return where this optimizer's passes are, as far as that is known."""
    if isinstance(optimizer, MeCAM) and optimizer.virtual_domain is None:
        return THETA, PLUS, MINUS
    return next((names for kind, names in PASSES.items() if isinstance(optimizer, kind)), (THETA,))


def _common(optimizer: SharpnessAware, name: str) -> float:
    """Return a hyperparameter that is the same in every group, alpha of MeCAM only; NaN where there is none."""
    if name not in optimizer.hyperparameters or (name == "alpha" and not isinstance(optimizer, MeCAM)):
        return math.nan
    values = {float(group[name]) for group in optimizer.param_groups}
    return values.pop() if len(values) == 1 else math.nan


def _has_dropout(model: nn.Module | None) -> bool:
    modules = () if model is None else model.modules()
    return any(isinstance(module, _DropoutNd) and module.p > 0 for module in modules)


def _finite(value: Tensor | float) -> float:
    number = float(value)
    return number if math.isfinite(number) else math.nan


def _known(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
