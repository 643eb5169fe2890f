"""What a hyperparameter means, which values it may take, and where one searches for it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Choice:
    """One of a few values."""

    values: tuple[float, ...]

    def __str__(self) -> str:
        return "{" + ", ".join(f"{v:g}" for v in self.values) + "}"


@dataclass(frozen=True)
class Uniform:
    """Uniform between two values."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"U({self.low:g}, {self.high:g})"


@dataclass(frozen=True)
class LogUniform:
    """10, or another base, to a power that is uniform between two values."""

    low: float
    high: float
    base: int = 10

    def __str__(self) -> str:
        return f"{self.base}^U({self.low:g}, {self.high:g})"


Search = Choice | Uniform | LogUniform


@dataclass(frozen=True)
class Hyperparameter:
    """Meaning, allowed range (bounds included unless `open_low`/`open_high`) and search space of a hyperparameter."""

    meaning: str
    low: float = 0.0
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    integer: bool = False
    shared: bool = False  # one value for all groups
    search: Search | None = None

    @property
    def allowed(self) -> str:
        """The range in words, for error messages and listings."""
        left = f"{'(' if self.open_low else '['}{self.low:g}"
        right = "inf)" if self.high == math.inf else f"{self.high:g}{')' if self.open_high else ']'}"
        return f"{'a whole number' if self.integer else 'a number'} in {left}, {right}"

    def check(self, owner: str, name: str, value: object) -> None:
        """Refuse a value outside the range. The value of a device tensor is not read: that would stop the device."""
        if isinstance(value, Tensor):
            if value.dim() != 0:
                raise ValueError(f"{owner}: {name} is a tensor of shape {tuple(value.shape)}; a 0-dim tensor is needed")
            if value.device.type != "cpu":
                return
            value = value.item()
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{owner}: {name}={value!r} is a {type(value).__name__}; it must be {self.allowed}")
        below = value <= self.low if self.open_low else value < self.low
        above = value >= self.high if self.open_high else value > self.high
        if not math.isfinite(value) or below or above or (self.integer and value != int(value)):
            raise ValueError(f"{owner}: {name}={value!r} is not allowed; it must be {self.allowed}")


def check_switch(owner: str, name: str, value: object) -> None:
    """Refuse what is not True or False: a recipe's "no" is a string, and would count as True."""
    if not isinstance(value, bool):
        raise TypeError(f"{owner}: {name}={value!r} is a {type(value).__name__}; it must be true or false")


RHO = Hyperparameter("radius of the perturbation", search=Choice((0.01, 0.02, 0.05, 0.1)))
