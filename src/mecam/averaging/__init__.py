"""Averages of the weights along training (EMA, SWAD, BMA), or none."""

from mecam.averaging.base import Averaging, NoAveraging, Weights, loaded
from mecam.averaging.bma import BMA
from mecam.averaging.ema import EMA
from mecam.averaging.swad import SWAD
from mecam.registry import Registry

ALL: tuple[type[Averaging], ...] = (NoAveraging, EMA, SWAD, BMA)
AVERAGINGS = Registry("averaging", ALL, note="register your own first, in Python: mecam.averaging.register")
create, register = AVERAGINGS.create, AVERAGINGS.register

__all__ = ["AVERAGINGS", "BMA", "EMA", "SWAD", "Averaging", "NoAveraging", "Weights", "create", "loaded", "register"]
