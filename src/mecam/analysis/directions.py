"""Directions in the space of weights, for landscapes.

Random directions are filter-normalised: in every filter (the weights of one output) a direction is as long as the
filter, so that a network and the same network with rescaled filters look alike. Tensors of one dimension, biases and
normalisation, do not move. Any other vectors, such as eigenvectors of the Hessian (mecam.analysis.spectrum.eigenpairs),
serve as directions as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from mecam.analysis.objective import dot, norm


def random_directions(
    parameters: Sequence[Tensor], count: Literal[1, 2], generator: torch.Generator
) -> list[list[Tensor]]:
    """Return one filter-normalised direction, or two that are orthogonal inside every filter, hence altogether.

    Gaussian draws, Gram-Schmidt inside each filter, then each filter scaled to ‖w‖: neither step undoes the other. A
    filter of one weight has no second direction, and it is 0 there. Draws are in float64 on the generator's device:
    with the same seed, networks of the same shapes get the same directions, each scaled by its own filters.
    """
    if count not in (1, 2):
        raise ValueError(f"count={count!r} is not allowed; there is a first direction and a second one")
    drawn = [[torch.zeros_like(parameter) for parameter in parameters] for _ in range(count)]
    for place, parameter in enumerate(parameters):
        if parameter.dim() < 2:
            continue
        shape = (len(parameter), math.prod(parameter.shape[1:]))
        size = parameter.detach().double().reshape(shape).norm(dim=1, keepdim=True)
        first: Tensor | None = None
        for direction in drawn:
            draw = torch.randn(shape, generator=generator, dtype=torch.float64, device=generator.device).to(size.device)
            if first is None:
                unit = first = draw / draw.norm(dim=1, keepdim=True)
            elif shape[1] == 1:
                unit = torch.zeros_like(draw)
            else:
                for _ in range(2):  # twice, for what rounding left
                    draw = draw - (draw * first).sum(1, keepdim=True) * first
                    draw = draw / draw.norm(dim=1, keepdim=True)
                unit = draw
            direction[place].copy_((unit * size).reshape(parameter.shape))
    return drawn


@dataclass(frozen=True)
class Plane:
    """The plane through three networks: the first is the origin, the second on the x axis, the third above or below it.

    The axes are orthonormal in the weights. What is not trained, such as the statistics of batch normalisation, goes
    along with the weights, so that at the three points the networks are the three networks. Variances go along by their
    logarithms: on a straight line beyond the points they would fall below 0.
    """

    axes: tuple[list[Tensor], list[Tensor]]  # for the parameters that require a gradient
    buffers: tuple[dict[str, Tensor], dict[str, Tensor]]  # for the buffers of floating point, in their `coordinate`
    points: tuple[tuple[float, float], tuple[float, float], tuple[float, float]]  # where the three networks are

    def grid(self, steps: int, margin: float = 0.2) -> tuple[list[float], list[float]]:
        """Return x and y over the range of the points, wider by the share `margin` at either end."""
        sides = []
        for place in (0, 1):
            low, high = min(p[place] for p in self.points), max(p[place] for p in self.points)
            far = margin * (high - low)
            sides.append(torch.linspace(low - far, high + far, steps, dtype=torch.float64).tolist())
        return sides[0], sides[1]


def plane(first: nn.Module, second: nn.Module, third: nn.Module) -> Plane:
    """Return the plane, by Gram-Schmidt on second − first and third − first."""
    weights = [[p.detach() for p in model.parameters() if p.requires_grad] for model in (first, second, third)]
    if len({tuple(p.shape for p in network) for network in weights}) > 1:
        raise ValueError("the three networks have parameters of different shapes: there is no plane through them")
    buffers = [
        {name: coordinate(name, buffer) for name, buffer in model.named_buffers() if buffer.is_floating_point()}
        for model in (first, second, third)
    ]
    origin = weights[0]
    across, up = ([w.to(o.device) - o for w, o in zip(other, origin, strict=True)] for other in weights[1:])
    across_buffers, up_buffers = (
        {name: other[name].to(value.device) - value for name, value in buffers[0].items()} for other in buffers[1:]
    )
    width = norm(across)
    if not width:
        raise ValueError("the first two networks have the same weights: there is no plane through them")
    x = [part / width for part in across]
    x_buffers = {name: part / width for name, part in across_buffers.items()}
    shadow = dot(up, x)
    rest = [u - shadow * part for u, part in zip(up, x, strict=True)]
    height = norm(rest)
    if height <= 1e-6 * norm(up):  # float32 leaves about 1e-7 of a vector along the first
        raise ValueError("the three networks lie on one line: there is no one plane through them")
    y = [part / height for part in rest]
    y_buffers = {name: (part - shadow * x_buffers[name]) / height for name, part in up_buffers.items()}
    return Plane((x, y), (x_buffers, y_buffers), ((0.0, 0.0), (width, 0.0), (shadow, height)))


def is_variance(name: str) -> bool:
    """Return whether this buffer is a running variance, which must stay positive."""
    return name.rpartition(".")[2] == "running_var"


def coordinate(name: str, buffer: Tensor) -> Tensor:
    """Return what moves along a line: the logarithm of a variance, any other buffer itself."""
    return buffer.clamp_min(torch.finfo(buffer.dtype).tiny).log() if is_variance(name) else buffer
