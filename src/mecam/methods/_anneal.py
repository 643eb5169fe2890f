"""An objective that changes at one step of the run, shared by IRM, VREx, Fishr and others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

from torch import nn

from mecam.hyperparameters import Hyperparameter, LogUniform
from mecam.methods.base import Method, Setting
from mecam.models.network import Network


class Annealed(Method):
    """A method that weighs its penalty by `before`, and by λ from the annealing step on.

    The base optimizer is reset at that step, since its moments belong to a loss of another scale.
    """

    before = 1.0
    hyperparameters = {
        "lam": Hyperparameter("weight of the penalty, once annealed", search=LogUniform(-1, 5)),
        "anneal": Hyperparameter(
            "step at which the penalty takes this weight; scaled down in runs shorter than 5,000 steps",
            search=LogUniform(0, 4),
        ),
    }

    def __init__(self, *, lam: float, anneal: float) -> None:
        self.lam, self.anneal = float(lam), float(anneal)

    def build(self, network: Network, setting: Setting) -> nn.Module:
        self.start = setting.scaled(self.anneal)
        return network

    def restarts(self, step: int) -> bool:
        return 0 < step == self.start

    def weight(self, step: int) -> float:
        """Return the factor on the penalty at this step."""
        return self.lam if step >= self.start else self.before


class Slowed(Annealed):
    """A method whose learning rate, too, changes at the annealing step: to `late_lr`, or to a share of lr."""

    share: ClassVar[float]  # of lr, if late_lr is not given

    def __init__(self, *, lam: float, anneal: float, late_lr: float | None) -> None:
        super().__init__(lam=lam, anneal=anneal)
        self.late_lr = late_lr

    def build(self, network: Network, setting: Setting) -> nn.Module:
        given = self.late_lr is not None and setting.lr
        self.late_rate = cast("float", self.late_lr) / setting.lr if given else self.share
        return super().build(network, setting)

    def rates(self, step: int) -> Sequence[float]:
        return [self.late_rate if step >= self.start else 1.0]
