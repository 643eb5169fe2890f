"""Hyperparameters: meaning, allowed range and search space."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, overload

from torch import Tensor


@dataclass(frozen=True)
class Choice:
    """Choose one of a few values."""

    values: tuple[float, ...]

    def __str__(self) -> str:
        return "{" + ", ".join(f"{v:g}" for v in self.values) + "}"


@dataclass(frozen=True)
class Uniform:
    """Draw uniformly between two values."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"U({self.low:g}, {self.high:g})"


@dataclass(frozen=True)
class LogUniform:
    """Draw the exponent of `base` uniformly between two values."""

    low: float
    high: float
    base: int = 10

    def __str__(self) -> str:
        return f"{self.base}^U({self.low:g}, {self.high:g})"


Search = Choice | Uniform | LogUniform


@dataclass(frozen=True)
class Hyperparameter:
    """Meaning, default, allowed range (bounds included unless `open_low`/`open_high`) and search space.

    In the body of a class it declares an attribute, whose value each instance has.
    """

    meaning: str
    default: float | None = None  # None: it must be given
    low: float = 0.0
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    integer: bool = False
    shared: bool = False  # one value for all groups
    search: Search | None = None

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type) -> Hyperparameter: ...
        @overload
        def __get__(self, instance: object, owner: type) -> Any: ...
        def __get__(self, instance: object | None, owner: type) -> Any: ...

    @property
    def allowed(self) -> str:
        """The range as text, for error messages and listings."""
        left = f"{'(' if self.open_low else '['}{self.low:g}"
        right = "inf)" if self.high == math.inf else f"{self.high:g}{')' if self.open_high else ']'}"
        return f"{'a whole number' if self.integer else 'a number'} in {left}, {right}"

    def check(self, owner: str, name: str, value: object) -> None:
        """Refuse a value outside the range. Device tensors are not read, since that would synchronize."""
        if isinstance(value, Tensor):
            if value.dim() != 0:
                raise ValueError(f"{owner}: {name} is a tensor of shape {tuple(value.shape)}; a 0-dim tensor is needed")
            if value.device.type != "cpu":
                return
            value = value.item()
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise SettingTypeError(f"{owner}: {name}={value!r} is a {type(value).__name__}; it must be {self.allowed}")
        below = value <= self.low if self.open_low else value < self.low
        above = value >= self.high if self.open_high else value > self.high
        if not abs(value) <= sys.float_info.max or below or above or (self.integer and value != int(value)):
            raise ValueError(f"{owner}: {name}={value!r} is not allowed; it must be {self.allowed}")


def check_switch(owner: str, name: str, value: object) -> None:
    """Refuse a value that is not a bool. The string "no" would count as True."""
    if not isinstance(value, bool):
        raise SettingTypeError(f"{owner}: {name}={value!r} is a {type(value).__name__}; it must be true or false")


class Configurable:
    """A class whose constructor takes, by keyword, the hyperparameters that it declares as attributes.

    A class with a constructor of its own may list them in `hyperparameters` instead. Those that it leaves out remain
    arguments of its bases' constructors.
    """

    hyperparameters: ClassVar[Mapping[str, Hyperparameter]] = {}
    _declared: ClassVar[Mapping[str, Hyperparameter]] = {}  # those of all bases

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if own := {name: each for name, each in vars(cls).items() if isinstance(each, Hyperparameter)}:
            cls.hyperparameters = {**cls.hyperparameters, **own}
        for name in cls._declared.keys() & vars(cls).keys() - own.keys():
            if isinstance(vars(cls)[name], (int, float)):
                raise TypeError(
                    f"{cls.__name__}.{name} is a hyperparameter of its base; change its default by {name} = "
                    f"Hyperparameter(..., {vars(cls)[name]!r}), or give {name} to the constructor"
                )
        cls._declared = {**cls._declared, **cls.hyperparameters}

    def __init__(self, **settings: float | None) -> None:
        super().__init__()
        if unknown := settings.keys() - self._declared.keys():
            raise TypeError(f"{type(self).__name__} has no hyperparameter {', '.join(sorted(unknown))}")
        for name, declared in self._declared.items():
            value = settings.get(name, declared.default)
            if value is not None:
                declared.check(type(self).__name__, name, value)
                value = int(value) if declared.integer else float(value)
            if name not in vars(self):  # as set by a constructor of its own
                setattr(self, name, value)


class SettingTypeError(TypeError, ValueError):
    """A setting of the wrong type. The command prints it on one line, as other wrong values."""


__all__ = ["Choice", "Configurable", "Hyperparameter", "LogUniform", "Search", "Uniform", "check_switch"]
