"""The interface of a domain-generalization method: the gradient to take on a batch of several domains.

An optimizer runs the closure one to four times per step, at weights of its choice, so a method separates what happens
once per run, once per step and once per pass:

    network = method.build(network, setting)            once: the network it trains
    each step:
        draw = method.draw(batch, generator)             everything random in the objective
        each pass, at any weights:
            loss, next = method.gradient(network, batch, draw, state)
        state = method.after(network, batch, draw, next of the first pass)

`gradient` is `loss` and its backward unless the method writes gradients itself. Both are pure: their only effect is the
state they return, and the loop keeps the state of the first pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.hyperparameters import Configurable
from mecam.methods.side import Side
from mecam.models.network import Network

PROTOCOL_STEPS = 5000  # published step counts (anneal, linear_steps) hold in runs of at least this length


def cross_entropy(logits: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy of the images, each times the weight of its class."""
    if class_weights is None:
        return F.cross_entropy(logits, labels)
    return F.cross_entropy(logits, labels, weight=class_weights, reduction="none").mean()


@dataclass(frozen=True)
class Batch:
    """Images of several source domains, one domain after another, with the same number of images per domain."""

    images: Tensor
    labels: Tensor
    domains: int
    step: int = 0
    class_weights: Tensor | None = None  # by class; None: 1 for all

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """Return the mean over the images of their cross-entropy, times the weight of their class."""
        return cross_entropy(logits, self.labels, self.class_weights)

    def losses(self, logits: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the cross-entropy of each image, times the weight of its class; `labels` in place of the batch's."""
        labels = self.labels if labels is None else labels
        return F.cross_entropy(logits, labels, weight=self.class_weights, reduction="none")

    def weigh(self, each: Tensor) -> Tensor:
        """Return a row for each image times the weight of its class."""
        if self.class_weights is None:
            return each
        return each * self.class_weights[self.labels].view(-1, *(1 for _ in each.shape[1:]))

    def domain_losses(self, logits: Tensor) -> Tensor:
        """Return the mean of `losses` for each domain."""
        return self.losses(logits).view(self.domains, -1).mean(1)

    def split(self, parts: int) -> list[Batch]:
        """Return batches with equal shares of the images of every domain."""
        shares = zip(*([x.chunk(parts), y.chunk(parts)] for x, y in self.by_domain()), strict=True)
        images, labels = ([torch.cat(part) for part in zip(*of_domains, strict=True)] for of_domains in shares)
        return [replace(self, images=x, labels=y) for x, y in zip(images, labels, strict=True)]

    def by_domain(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.images.chunk(self.domains), self.labels.chunk(self.domains), strict=True))

    def parts(self) -> list[Batch]:
        """Return a batch for each domain."""
        return [replace(self, images=images, labels=labels, domains=1) for images, labels in self.by_domain()]

    def domain_labels(self) -> Tensor:
        """Return the index of each image's domain."""
        each = len(self.labels) // self.domains
        return torch.arange(self.domains, device=self.labels.device).repeat_interleave(each)


@dataclass(frozen=True)
class Setting:
    """The run that a method is built for."""

    classes: int
    domains: int  # sources
    steps: int
    lr: float  # main optimizer
    weight_decay: float = 0.0
    lr_ratio: float = 1.0  # lr relative to the one that Adam would have in its place

    @property
    def adam_lr(self) -> float:
        """Learning rate for auxiliary Adam optimizers and inner steps."""
        return self.lr / self.lr_ratio

    def scaled(self, steps: float) -> int:
        """Scale a published number of steps down in proportion for runs of fewer than 5,000 steps."""
        return round(steps * self.steps / PROTOCOL_STEPS) if self.steps < PROTOCOL_STEPS else int(steps)


class Method(Configurable):
    """The base class of methods; most override `loss` alone.

    A subclass declares each hyperparameter as an attribute: see `Configurable`.
    """

    name: ClassVar[str]
    sources: ClassVar[int] = 1  # source domains it needs at least
    images: ClassVar[int] = 1  # images per domain and step it needs at least
    surgery: ClassVar[bool] = False  # writes gradients itself, which then carry no graph
    capturable: ClassVar[bool] = False  # steps differ in tensors alone until `changes`, and do not synchronize
    by_domain: ClassVar[bool] = False  # its loss is the mean of its losses on each domain's images
    # its loss is a mean over images, without draws and state, so that gradients of parts of a batch can be averaged
    accumulates: ClassVar[bool] = False
    mates: ClassVar[bool] = False  # predictions depend on the other images of the batch
    on_features: ClassVar[bool] = False  # trains a head whose input are features of a frozen backbone
    weighted: ClassVar[bool] = False  # weighs classes: its classification loss is from `Batch`
    optimizer_settings: ClassVar[Mapping[str, Any]] = {}  # Adam's settings by the authors; the recipe has priority
    sides: Mapping[str, Side] = {}  # auxiliary modules such as adversaries, each with its own optimizer; set by `build`
    virtual_domain: Any = None  # has `active()`, which an optimizer enters for its meta pass

    @classmethod
    def declares(cls, flag: str) -> bool:
        """Return a flag of the class itself. `capturable`, `by_domain` and `accumulates` do not hold for subclasses."""
        return bool(vars(cls).get(flag, False))

    def build(self, network: Network, setting: Setting) -> nn.Module:
        """Return the module to train, which maps images to logits. New parts are initialised from torch's generator.

        Modules with an optimizer of their own are listed in `self.sides`.
        """
        return network

    def groups(self, network: nn.Module) -> Sequence[Sequence[nn.Parameter]]:
        """Return the parameters of the main optimizer, in groups that may have different learning rates."""
        return [list(network.parameters())]

    def rates(self, step: int) -> Sequence[float]:
        """Return the factor on each group's learning rate at this step; 0 freezes the group."""
        return [1.0]

    def restarts(self, step: int) -> bool:
        """Return whether the base optimizer's state is cleared before this step."""
        return False

    def changes(self, step: int) -> bool:
        """Return whether the objective differs from this step on; CUDA graphs are then captured again."""
        return self.restarts(step)

    def declines(self, step: int) -> bool:
        """Return whether the main optimizer skips this step; `after` then gets the unchanged state."""
        return False

    def initial_state(self) -> Any:
        """Return the running state before the first step, after `build`, in types that a checkpoint can hold."""
        return None

    def draw(self, batch: Batch, generator: torch.Generator) -> Any:
        """Draw everything random in the objective, once per step; the generator is on the CPU."""
        return None

    def loss(self, network: Any, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:
        """Return the objective at the network's weights and the next running state."""
        raise NotImplementedError(
            f"{type(self).__name__} implements neither loss nor gradient; a method needs one of them"
        )

    def domain_losses(self, network: Any, batch: Batch, draw: Any, state: Any) -> Tensor:
        """Return the loss of each domain, for methods with `by_domain`."""
        return torch.stack([self.loss(network, part, draw, state)[0] for part in batch.parts()])

    def gradient(self, network: Any, batch: Batch, draw: Any, state: Any, *, graph: bool = False) -> tuple[Tensor, Any]:
        """Fill the parameters' gradients, which are empty; return the objective and the next state."""
        loss, state = self.loss(network, batch, draw, state)
        loss.backward(create_graph=graph)  # type: ignore[no-untyped-call]
        return loss.detach(), state

    def after(self, network: Any, batch: Batch, draw: Any, state: Any) -> Any:
        """Train the sides, once per step after the optimizer. Take the first pass's state, return the one to keep."""
        return state

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the sides; the loop keeps the running state."""
        return {name: side.state_dict() for name, side in self.sides.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, side in self.sides.items():
            side.load_state_dict(state[name])
