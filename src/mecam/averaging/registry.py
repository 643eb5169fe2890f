"""Every averaging by name."""

from __future__ import annotations

from mecam.averaging.base import Averaging
from mecam.averaging.ema import EMA
from mecam.averaging.none import NoAveraging
from mecam.averaging.swad import SWAD
from mecam.registry import Registry

ALL: tuple[type[Averaging], ...] = (NoAveraging, EMA, SWAD)
AVERAGINGS = Registry("averaging", ALL, note="register your own first, in Python: mecam.averaging.register")
create, register = AVERAGINGS.create, AVERAGINGS.register

__all__ = ["AVERAGINGS", "create", "register"]
