"""What an averaging is: which weights to evaluate on the way, when to stop, and which to keep at the end.

    for step in steps:
        optimizer.step(closure)
        averaging.update(model)
        if step is one to evaluate at:
            weights = averaging.candidate(model)
            with loaded(model, weights):
                loss = evaluate(model)
            if averaging.evaluated(step, loss, model):
                break
    kept = averaging.final()

It looks at weights and losses only, so any averaging goes with any method and any optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn

from mecam.optim.hyperparameters import Hyperparameter

Weights = dict[str, Tensor]  # as of Module.state_dict


class Averaging(Protocol):
    """An averaging of a model's weights along training."""

    name: ClassVar[str]
    hyperparameters: ClassVar[Mapping[str, Hyperparameter]]
    # whether batch-norm statistics, where they are not frozen, have to be estimated anew for the weights of `final`
    needs_bn_update: ClassVar[bool]

    def update(self, model: nn.Module, /) -> None:
        """Called after every optimizer step."""

    def candidate(self, model: nn.Module, /) -> Weights | None:
        """The weights to evaluate now, as a copy; None for the model's own."""

    def evaluated(self, step: int, loss: float, model: nn.Module, /) -> bool:
        """Called with the mean validation loss of what was evaluated; True when training should stop."""

    def final(self) -> Weights | None:
        """The weights to keep, as a copy; None for those that were evaluated at the selected step."""

    def state_dict(self) -> dict[str, Any]:
        """All there is to go on from, in types that a checkpoint can hold; its tensors are not copies."""

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Go on from there, bit for bit, on whatever device the model is."""


@contextmanager
def loaded(model: nn.Module, weights: Mapping[str, Tensor] | None) -> Iterator[None]:
    """The model with other weights for a while, and then with its own again, bit for bit; None changes nothing."""
    if weights is None:
        yield
        return
    own = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        model.load_state_dict(weights)
        yield
    finally:
        model.load_state_dict(own)
