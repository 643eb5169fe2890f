"""What a domain-generalization method is: which gradient to take on a batch of several domains.

An optimizer runs the closure one to four times a step, at weights of its choice, so a method says *when* things happen:

    network = method.build(network, setting)            once: the network it trains
    each step:
        draw = method.draw(batch, generator)             everything random in the objective
        each pass, at any weights:
            loss, next = method.gradient(network, batch, draw, state)
        state = method.after(network, batch, draw, next of the first pass)

`gradient` is `loss` and its backward unless the method writes gradients itself. Both are pure: what they change is in
the state they return, and of those the loop keeps the first pass's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mecam.methods.side import Side
from mecam.models.network import Network
from mecam.optim.hyperparameters import Hyperparameter

PROTOCOL_STEPS = 5000  # published step counts (anneal, linear_steps) hold in runs of at least this length


@dataclass(frozen=True)
class Batch:
    """Images of several source domains, domain after domain, the same number of each."""

    images: Tensor
    labels: Tensor
    domains: int
    step: int = 0  # the step it is for

    def by_domain(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.images.chunk(self.domains), self.labels.chunk(self.domains), strict=True))

    def domain_labels(self) -> Tensor:
        """The number of the domain each image is from."""
        each = len(self.labels) // self.domains
        return torch.arange(self.domains, device=self.labels.device).repeat_interleave(each)


@dataclass(frozen=True)
class Setting:
    """What a method is told of the run it is built for."""

    classes: int
    domains: int  # sources
    steps: int
    lr: float  # of the main optimizer
    weight_decay: float = 0.0
    lr_ratio: float = 1.0  # of that to an Adam's in its place

    @property
    def adam_lr(self) -> float:
        """What suits an Adam on this problem: of the sides, of inner steps."""
        return self.lr / self.lr_ratio

    def scaled(self, steps: float) -> int:
        """A published number of steps; in proportion in a run of fewer than 5,000."""
        return round(steps * self.steps / PROTOCOL_STEPS) if self.steps < PROTOCOL_STEPS else int(steps)


class Method:
    """The parts of a method; most override `loss` alone.

    Its hyperparameters are keyword arguments of the constructor, declared in `hyperparameters`.
    """

    name: ClassVar[str]
    hyperparameters: ClassVar[Mapping[str, Hyperparameter]] = {}
    sources: ClassVar[int] = 1  # source domains it needs at least
    images: ClassVar[int] = 1  # images of a domain and step it needs at least
    surgery: ClassVar[bool] = False  # writes gradients itself, which then carry no graph
    recordable: ClassVar[bool] = False  # between restarts nothing but tensors changes, and nothing waits for the device
    compares: ClassVar[bool] = False  # its loss is no mean over images: under torchrun each process sees its own part
    mates: ClassVar[bool] = False  # predictions depend on the other images of the batch
    optimizer_settings: ClassVar[Mapping[str, Any]] = {}  # what its authors set in Adam, unless the recipe does
    virtual_domain: Any = None  # with `active()`: tells the method that an optimizer takes its meta pass

    def build(self, network: Network, setting: Setting) -> nn.Module:  # noqa: ARG002
        """The module to train, which maps images to logits; parts that it adds are initialised from torch's generator.

        What else trains, with an optimizer of its own, goes to `self.sides`.
        """
        return network

    @property
    def sides(self) -> Mapping[str, Side]:
        """Adversaries and the like, each with its own optimizer."""
        return {}

    def groups(self, network: nn.Module) -> Sequence[Sequence[nn.Parameter]]:
        """The parameters of the main optimizer, in groups that may learn at different rates."""
        return [list(network.parameters())]

    def rates(self, step: int) -> Sequence[float]:  # noqa: ARG002
        """The factor on each group's learning rate at this step; 0: the group does not train."""
        return [1.0]

    def restarts(self, step: int) -> bool:  # noqa: ARG002
        """Whether the base optimizer forgets its state before this step."""
        return False

    def declines(self, step: int) -> bool:  # noqa: ARG002
        """Whether the main optimizer rests at this step; `after` then gets the state as it was."""
        return False

    def initial_state(self) -> Any:
        """The running state before the first step, after `build`, in types that a checkpoint can hold."""
        return None

    def draw(self, batch: Batch, generator: torch.Generator) -> Any:  # noqa: ARG002
        """Everything random in the objective, once a step; the generator is on the CPU."""
        return None

    def loss(self, network: Any, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:
        """The objective at the network's weights, and the next running state."""
        raise NotImplementedError(f"{type(self).__name__} has neither a loss nor a gradient; a method has one of them")

    def gradient(self, network: Any, batch: Batch, draw: Any, state: Any, *, graph: bool = False) -> tuple[Tensor, Any]:
        """Fill the parameters' gradients, which are empty; the objective's value and the next state."""
        loss, state = self.loss(network, batch, draw, state)
        loss.backward(create_graph=graph)  # type: ignore[no-untyped-call]
        return loss.detach(), state

    def after(self, network: Any, batch: Batch, draw: Any, state: Any) -> Any:  # noqa: ARG002
        """Once a step, after the optimizer: train the sides. Gets the first pass's state, gives the one to keep."""
        return state

    def state_dict(self) -> dict[str, Any]:
        """Of the sides; the running state is the loop's to keep."""
        return {name: side.state_dict() for name, side in self.sides.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, side in self.sides.items():
            side.load_state_dict(state[name])
