"""The loop, evaluation and selection."""

from mecam.runs import CircumstancesWarning
from mecam.training.interrupt import Interrupted
from mecam.training.loop import train

__all__ = ["CircumstancesWarning", "Interrupted", "train"]
