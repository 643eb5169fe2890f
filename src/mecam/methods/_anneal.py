"""A penalty that takes its weight at a step of the run: what IRM, VREx and Fishr share."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from mecam.methods.base import Method, Setting
from mecam.models.network import Network


class Annealed(Method):
    """Weighs its penalty by `before`, and by λ from the annealing step on.

    The base optimizer starts anew at that step: its moments are those of a loss of another size.
    """

    before: ClassVar[float] = 1.0

    def __init__(self, *, lam: float, anneal: float) -> None:
        self.lam, self.anneal = float(lam), float(anneal)

    def build(self, network: Network, setting: Setting) -> nn.Module:
        self.start = setting.scaled(self.anneal)
        return network

    def restarts(self, step: int) -> bool:
        return 0 < step == self.start

    def weight(self, step: int) -> float:
        """The factor on the penalty at this step."""
        return self.lam if step >= self.start else self.before
