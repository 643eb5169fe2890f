"""Directions in the space of weights, for landscapes.

Random directions are filter-normalised: in every filter (the weights of one output) a direction is as long as the
filter, so that a network and the same network with rescaled filters look alike. Tensors of one dimension, biases and
normalisation, do not move. Any other vectors, such as eigenvectors of the Hessian (mecam.analysis.spectrum.eigenpairs),
serve as directions as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from mecam.analysis.objective import dot


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
        filters = parameter.detach().double().flatten(1)
        sizes = filters.norm(dim=1, keepdim=True)
        first: Tensor | None = None
        for direction in drawn:
            draw = torch.randn(filters.shape, generator=generator, dtype=torch.float64, device=generator.device)
            unit = draw.to(sizes.device)
            if first is None:
                unit = first = normalize(unit)
            else:
                for _ in range(2):  # twice, for what rounding left
                    unit = normalize(unit - (unit * first).sum(1, keepdim=True) * first)
            direction[place].copy_((unit * sizes).reshape(parameter.shape))
    return drawn


def gaussian(parameters: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
    """Return independent standard normal numbers, drawn in float64: of one seed, the same in every precision."""
    return [torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.device, p.dtype) for p in parameters]


@dataclass(frozen=True)
class Plane:
    """The plane through three networks: the first is the origin, the second on the x axis, the third above or below it.

    The axes are orthonormal in the weights. Buffers such as the statistics of batch normalisation move along with them,
    so that at the three points the networks are the three networks. Variances move along by their logarithms: on a
    straight line beyond the points they would fall below 0.
    """

    axes: tuple[dict[str, Tensor], dict[str, Tensor]]  # by name: trained parameters and buffers, as in `coordinates`
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
    origin, *others = map(coordinates, (first, second, third))
    shapes = [{name: part.shape for name, part in network.items()} for network in (origin, *others)]
    if shapes.count(shapes[0]) < 3:
        raise ValueError("the three networks have parameters of different shapes: there is no plane through them")
    trained = [name for name, parameter in first.named_parameters() if parameter.requires_grad]
    across, up = ({name: other[name].to(part.device) - part for name, part in origin.items()} for other in others)

    def product(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
        return dot([left[name] for name in trained], [right[name] for name in trained])

    width = math.sqrt(product(across, across))
    if not width:
        raise ValueError("the first two networks have the same weights: there is no plane through them")
    x = {name: part / width for name, part in across.items()}
    shadow = product(up, x)
    rest = {name: part - shadow * x[name] for name, part in up.items()}
    height = math.sqrt(product(rest, rest))
    if height <= 1e-6 * math.sqrt(product(up, up)):  # float32 leaves about 1e-7 of a vector along the first
        raise ValueError("the three networks lie on one line: there is no one plane through them")
    y = {name: part / height for name, part in rest.items()}
    return Plane((x, y), ((0.0, 0.0), (width, 0.0), (shadow, height)))


def coordinates(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that move along a line: trained parameters, buffers, logarithms of running variances."""
    trained = {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}
    buffers = {name: buffer.detach() for name, buffer in model.named_buffers() if buffer.is_floating_point()}
    for name, buffer in buffers.items():
        if is_variance(name):
            buffers[name] = buffer.clamp_min(torch.finfo(buffer.dtype).tiny).log()
    return {**trained, **buffers}


def is_variance(name: str) -> bool:
    """Return whether this is the name of a running variance, which must stay positive."""
    return name.rpartition(".")[2] == "running_var"
