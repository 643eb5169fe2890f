"""Which weights to keep: those of one step, or an average along training (EMA, SWAD)."""

from mecam.averaging.base import Averaging, Weights, loaded
from mecam.averaging.ema import EMA
from mecam.averaging.none import NoAveraging
from mecam.averaging.registry import AVERAGINGS, create, register
from mecam.averaging.swad import SWAD

__all__ = ["AVERAGINGS", "EMA", "SWAD", "Averaging", "NoAveraging", "Weights", "create", "loaded", "register"]
