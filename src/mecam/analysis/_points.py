"""Compute the mean loss at many weights; each batch is loaded once for all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from mecam.analysis.directions import coordinate, is_variance
from mecam.analysis.objective import Direction, Objective

Point = tuple[float, float]
COUNTS = (1, 4, 16, 64)  # points at once that are tried


class Points:
    """f(θ + x first + y second), for the model in eval mode.

    Args:
        directions: one or two.
        buffers: how buffers of the model move along each direction, in their `coordinate`; those not named stay.
    """

    def __init__(
        self, objective: Objective, directions: Sequence[Direction], buffers: Sequence[Mapping[str, Tensor]] = ()
    ) -> None:
        self.objective = objective
        model = objective.model
        here = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        moved = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        axes = [dict(zip(moved, direction, strict=True)) for direction in directions]
        for axis, more in zip(axes, buffers, strict=bool(buffers)):
            axis.update(more)
        self.names = list(axes[0])
        self.origin = [coordinate(name, here[name].detach()) for name in self.names]
        self.axes = [[axis[name].detach() for name in self.names] for axis in axes]
        for parts in self.axes:
            for name, part, weight in zip(self.names, parts, self.origin, strict=True):
                if part.shape != weight.shape:
                    raise ValueError(
                        f"a direction has the shape {tuple(part.shape)} at {name}, which is {tuple(weight.shape)}"
                    )

    def values(self, points: Sequence[Point], at_once: int) -> list[float]:
        """Return f at each of the points, `at_once` of them in one pass through the model."""
        total = torch.zeros(len(points), dtype=torch.float64, device=self.objective.device)
        with self.objective.studied(), torch.inference_mode():
            for inputs, targets in self.objective.batches:
                total += self._batch(inputs, targets, points, at_once)
        return [float(value) for value in total / self.objective.count]

    def fastest(self) -> int:
        """Return how many points at once take the least time per point on the first batch.

        On a CPU it is one: by vmap a point of resnet8 takes 1.5 to 2.2 times as long.
        """
        best, least = 1, math.inf
        if self.objective.device.type == "cpu":
            return best
        inputs, targets = next(iter(self.objective.batches))
        with self.objective.studied(), torch.inference_mode():
            for count in COUNTS:
                try:
                    for _ in range(2):  # the first call also pays for what is set up once
                        start = time.perf_counter()
                        self._batch(inputs, targets, [(0.0, 0.0)] * count, count).sum().item()  # waits for the device
                        taken = (time.perf_counter() - start) / count
                except RuntimeError:  # out of memory, or an operation that vmap cannot do
                    break
                if taken >= least:
                    break
                best, least = count, taken
        return best

    def _batch(self, inputs: Tensor, targets: Tensor, points: Sequence[Point], at_once: int) -> Tensor:
        """Return the loss on a batch, times its size, at each of the points."""
        objective = self.objective
        inputs, targets = inputs.to(objective.device), targets.to(objective.device)

        def at(weights: list[Tensor]) -> Tensor:
            named = dict(zip(self.names, weights, strict=True))
            return objective.loss(functional_call(objective.model, named, (inputs,)), targets)

        losses = []
        for start in range(0, len(points), at_once):
            weights = [self._weights(point) for point in points[start : start + at_once]]
            if at_once == 1:
                losses.append(at(weights[0]).reshape(1))
            else:
                losses.append(vmap(at)([torch.stack(parts) for parts in zip(*weights, strict=True)]))
        return torch.cat(losses).double() * len(targets)

    def _weights(self, point: Point) -> list[Tensor]:
        weights = self.origin
        for axis, far in zip(self.axes, point, strict=False):
            weights = list(torch._foreach_add(weights, axis, alpha=far))
        return [weight.exp() if is_variance(name) else weight for name, weight in zip(self.names, weights, strict=True)]
