"""An objective that changes at one step of the run, shared by IRM, VREx, Fishr and others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import nn

from mecam.hyperparameters import Hyperparameter, LogUniform, Search
from mecam.methods.base import Method, Setting
from mecam.models.network import Network

WEIGHTS, STEPS = LogUniform(-1, 5), LogUniform(0, 4)  # that most searches are over


def penalty_weight(default: float, search: Search = WEIGHTS, of: str = "penalty") -> Hyperparameter:
    """Declare λ."""
    return Hyperparameter(f"weight of the {of}, once annealed", default, search=search)


def annealing_step(default: float, search: Search = STEPS, of: str = "penalty") -> Hyperparameter:
    """Declare the step from which on λ holds."""
    meaning = f"step at which the {of} takes this weight; scaled down in runs shorter than 5,000 steps"
    return Hyperparameter(meaning, default, search=search)


def late_learning_rate(share: float, search: Search) -> Hyperparameter:
    """Declare the learning rate from the annealing step on; `share` is that of lr if it is not given."""
    return Hyperparameter(f"learning rate from the annealing step on; not given: {share:g} lr", search=search)


class Annealed(Method):
    """A method that weighs its penalty by `before`, and by λ from the annealing step on.

    The base optimizer is reset at that step, since its moments belong to a loss of another scale.
    """

    before = 1.0
    lam: Hyperparameter
    anneal: Hyperparameter

    def build(self, network: Network, setting: Setting) -> nn.Module:
        self.start = setting.scaled(self.anneal)
        return network

    def restarts(self, step: int) -> bool:
        return 0 < step == self.start

    def weight(self, step: int) -> float:
        """Return the factor on the penalty at this step."""
        weight: float = self.lam if step >= self.start else self.before
        return weight


class Slowed(Annealed):
    """A method whose learning rate, too, changes at the annealing step: to `late_lr`, or to a share of lr."""

    share: ClassVar[float]  # of lr, if late_lr is not given
    late_lr: Hyperparameter

    def build(self, network: Network, setting: Setting) -> nn.Module:
        given = self.late_lr is not None and setting.lr
        self.late_rate: float = self.late_lr / setting.lr if given else self.share
        return super().build(network, setting)

    def rates(self, step: int) -> Sequence[float]:
        return [self.late_rate if step >= self.start else 1.0]
