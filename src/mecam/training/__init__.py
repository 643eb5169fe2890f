"""The loop, evaluation and selection."""

from mecam.training.interrupt import Interrupted
from mecam.training.loop import Progress, train

__all__ = ["Interrupted", "Progress", "train"]
