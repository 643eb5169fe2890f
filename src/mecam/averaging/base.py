"""The interface of weight averaging.

    averaging.begin(model, len(steps))
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

An averaging sees weights and losses only, so it works with any method and any optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from torch import Tensor, nn

from mecam.hyperparameters import Configurable

Weights = dict[str, Tensor]  # as Module.state_dict returns them


class Averaging(Configurable):
    """Keep the model's own weights; subclasses average them along training."""

    name: ClassVar[str]
    # whether batch-norm statistics that are not frozen must be estimated again for the weights of `final`
    needs_bn_update: ClassVar[bool] = False

    def begin(self, model: nn.Module, steps: int, /) -> None:
        """Take in the initial weights and the number of steps; called once, before `load_state_dict`."""

    def update(self, model: nn.Module, /) -> None:
        """Take in the weights; called after every optimizer step."""

    def candidate(self, _model: nn.Module, /) -> Weights | None:
        """Return a copy of the weights to evaluate now; None for the model's own."""
        return None

    def evaluated(self, _step: int, _loss: float, _model: nn.Module, /) -> bool:
        """Take in the mean validation loss of what was evaluated; return True to stop training."""
        return False

    def final(self) -> Weights | None:
        """Return a copy of the weights to keep; None for those evaluated at the selected step."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the state in types that a checkpoint can hold; tensors are not copied."""
        return {}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Resume from a state, bit for bit, on whatever device the model is."""


class NoAveraging(Averaging):
    """Keep the model's own weights at the step that validation selects."""

    name: ClassVar[str] = "none"


@contextmanager
def loaded(model: nn.Module, weights: Mapping[str, Tensor] | None) -> Iterator[None]:
    """Load other weights into the model within the context, then restore its own bit for bit; no-op for None."""
    if weights is None:
        yield
        return
    own = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        model.load_state_dict(weights)
        yield
    finally:
        model.load_state_dict(own)
