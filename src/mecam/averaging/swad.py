"""SWAD, stochastic weight averaging densely (Cha et al., 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from torch import Tensor, nn

from mecam.averaging._mean import WeightMean
from mecam.averaging.base import Averaging, Weights
from mecam.hyperparameters import Choice, Hyperparameter

Judge = Literal["current", "segment"]


@dataclass(frozen=True)
class Segment:
    """Steps between two evaluations: the mean of their weights, and the loss at the evaluation that ends them."""

    step: int
    loss: float
    mean: WeightMean


class SWAD(Averaging):
    """Average all weights along a valley of the validation loss, found during training.

    The weights of every step between two evaluations make a segment, with the validation loss l at its end.

        start   the first segment c whose loss is the least of the N_s from it on; t = (1+r) · mean of these N_s losses
                bounds the valley. Up to N_e − N_s segments before c belong to it, as far as their losses are ≤ t.
        end     the last segment with l ≤ t before N_e in a row with l > t: then training stops, the valley is dead.
        mean    over the segments from start to end, each once, and each with the same weight.

    Without a start, the last segment's mean is kept. Cha et al.'s code counts some segments two or three times and
    omits another; this is the rule that their paper states. At most N_e means are kept, on the CPU.

    Args:
        judge: the weights whose loss is l. "current": the model's own, as in Cha et al.; "segment": the segment's mean.
        segment_loss: an older spelling of `judge`: True for "segment", False for "current".
    """

    name: ClassVar[str] = "swad"
    needs_bn_update: ClassVar[bool] = True
    n_converge = Hyperparameter("N_s: evaluations without improvement before averaging starts", 3, low=1, integer=True)
    n_tolerance = Hyperparameter("N_e: evaluations above the threshold before it ends", 6, low=1, integer=True)
    tolerance = Hyperparameter("r: relative tolerance of the threshold", 0.3, search=Choice((0.2, 0.3)))

    def __init__(self, *, judge: Judge = "current", segment_loss: bool | None = None, **settings: float) -> None:
        super().__init__(**settings)
        if judge not in get_args(Judge):
            raise ValueError(f"SWAD: judge={judge!r} is not allowed; it must be one of {', '.join(get_args(Judge))}")
        self.judge = judge if segment_loss is None else "segment" if segment_loss else "current"
        self.running = WeightMean()  # of the segment under way
        self.segments: list[Segment] = []  # that may still join the mean
        self.mean = WeightMean()
        self.joined: list[int] = []  # the evaluations of the segments in the mean
        self.threshold: float | None = None  # known once there is a start
        self.dead = False

    def update(self, model: nn.Module, /) -> None:
        if not self.dead:
            self.running.add(model.state_dict())

    def candidate(self, _model: nn.Module, /) -> Weights | None:
        return self.running.weights() if self.judge == "segment" and self.running.count else None

    def evaluated(self, step: int, loss: float, _model: nn.Module, /) -> bool:
        if self.dead or not self.running.count:  # no steps since the last evaluation: no segment
            return self.dead
        self.segments.append(Segment(step, loss if math.isfinite(loss) else math.inf, self.running.mapped(Tensor.cpu)))
        self.running = WeightMean()
        if self.threshold is None:
            self._find_start()
        if self.threshold is not None:
            self._find_end(self.threshold)
        return self.dead

    def final(self) -> Weights | None:
        if self.threshold is None:
            last = self.segments[-1].mean if self.segments else self.running
            return last.weights() if last.count else None
        mean = self.mean.mapped(Tensor.clone)
        for segment in self._tail(self.threshold):
            mean.add_mean(segment.mean)
        return mean.weights()

    def kept(self) -> list[int]:
        """Return the steps of the evaluations whose segments `final` averages."""
        if self.threshold is None:
            return [segment.step for segment in self.segments[-1:]]
        return self.joined + [segment.step for segment in self._tail(self.threshold)]

    def state_dict(self) -> dict[str, Any]:
        return {
            "running": self.running.state_dict(),
            "segments": [{"step": s.step, "loss": s.loss, "mean": s.mean.state_dict()} for s in self.segments],
            "mean": self.mean.state_dict(),
            "joined": list(self.joined),
            "threshold": self.threshold,
            "dead": self.dead,
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.running = WeightMean.from_state_dict(state["running"])
        self.segments = [
            Segment(s["step"], s["loss"], WeightMean.from_state_dict(s["mean"])) for s in state["segments"]
        ]
        self.mean = WeightMean.from_state_dict(state["mean"])
        self.joined = list(state["joined"])
        self.threshold = state["threshold"]
        self.dead = state["dead"]

    def _find_start(self) -> None:
        """If the loss has not fallen for N_s evaluations, set the threshold and drop the segments before the valley."""
        del self.segments[: -max(self.n_converge, self.n_tolerance)]
        losses = [segment.loss for segment in self.segments[-self.n_converge :]]
        # a mean of equal losses may be rounded to less than each of them
        threshold = max(sum(losses) / len(losses), min(losses)) * (1 + self.tolerance)
        if len(losses) < self.n_converge or losses[0] > min(losses) or not math.isfinite(threshold):
            return
        self.threshold = threshold
        start = len(self.segments) - self.n_converge
        while start and self.segments[start - 1].loss <= threshold:
            start -= 1
        del self.segments[:start]

    def _find_end(self, threshold: float) -> None:
        """Average each segment that has one under the threshold among the N_e from it on, as soon as that is known."""
        self.dead = self.segments[-1].loss == math.inf  # diverged weights must not get into the mean
        while not self.dead and len(self.segments) >= self.n_tolerance:
            if min(segment.loss for segment in self.segments[: self.n_tolerance]) > threshold:
                self.segments.clear()
                self.dead = True
            else:
                segment = self.segments.pop(0)
                self.mean.add_mean(segment.mean)
                self.joined.append(segment.step)

    def _tail(self, threshold: float) -> list[Segment]:
        """Return the segments that join at the end of training: those up to the last one under the threshold."""
        tail = list(self.segments)
        while tail and tail[-1].loss > threshold:
            tail.pop()
        return tail
