"""From a folder of images to a model in use, within a time budget: what `mecam fit` does."""

from mecam.fitting.run import fit
from mecam.fitting.verdict import Verdict

__all__ = ["Verdict", "fit"]
