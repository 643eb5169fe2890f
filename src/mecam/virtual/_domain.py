"""The base class of virtual domains: hooks that are inert outside `active()`, and their own random numbers."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from typing_extensions import Self

from mecam.hyperparameters import Hyperparameter
from mecam.virtual._draws import Draw, Seeds, draw_seed, needs_default_generator
from mecam.virtual._layers import find_layer

Layers = str | nn.Module | Iterable[str | nn.Module]
P = Hyperparameter("probability that a call of a layer mixes", high=1)
BLOCKS = Hyperparameter("equal blocks of the batch; partners come from another block", low=2, integer=True)


class VirtualDomain(ABC):
    """A change of style inside a model, inert unless switched on: `with domain.active(): loss = model(x)`.

    - `active()` is the only switch: train or eval mode does not matter. It may be nested; the outermost counts.
    - Random: entering `active()` draws one seed from `generator` (default: torch's global CPU generator), and every
      number of that activation comes from it. So `torch.manual_seed` reproduces a run, resuming needs no extra state,
      and the global generator advances by one number, whatever runs inside. Compiled code and CUDA graphs draw from
      the device's default generator instead, since they would freeze a private one. Under DDP each rank draws its own
      numbers if its global generator is seeded on its own.
    - `p` is drawn at every call of a layer, as in the published code, and on the device, without a host sync; a
      batch that is not mixed keeps its bits.
    - Copies: a deep copy of the model uses the same switch, and a deep copy of a virtual domain is the domain itself.
      Model and domain pickled together stay connected; a model pickled alone has inert hooks. `detach()` removes the
      hooks from the modules given to `attach`, not from their copies.
    - Activation checkpointing recomputes a layer with the numbers it had, provided backward runs inside `active()`.
    - `torch.compile`: attach before the first compiled call. Dynamo ignores hooks added later; `active()` then warns
      that no layer ran.
    """

    name: ClassVar[str]
    hyperparameters: ClassVar[Mapping[str, Hyperparameter]] = {"p": P}

    def __init__(self, *, p: float, generator: torch.Generator | None) -> None:
        if generator is not None and generator.device.type != "cpu":
            raise ValueError(f"generator must be on the CPU, got {generator.device}")
        self._check(p=p)
        self.p = p
        self._generator = generator
        self._handles: list[RemovableHandle] = []
        self._seeds: Seeds | None = None
        # Separate from `_seeds`, so that compiled code guards on a plain boolean.
        self._on = False
        self._ran = False

    @contextmanager
    def active(self) -> Iterator[None]:
        """Switch the virtual domain on for the duration of a `with` block."""
        if self._on:
            yield
            return
        self._seeds = Seeds(draw_seed(self._generator))
        self._on, self._ran = True, False
        try:
            yield
        finally:
            self._on, self._seeds = False, None
        if not self._ran:
            warnings.warn(
                f"no layer ran through {type(self).__name__} while it was active: attach() it to the model that runs, "
                "and before the first compiled call (or call torch._dynamo.reset() after attaching)",
                RuntimeWarning,
                stacklevel=3,
            )

    @abstractmethod
    def attach(self, model: nn.Module, layers: Layers) -> Self:
        """Act on these layers of the model, given by dotted name or as modules; return self."""

    def detach(self) -> None:
        """Remove the hooks that `attach` registered."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @abstractmethod
    def _mix(self, x: Tensor, draw: Draw) -> Tensor:
        """Apply the formula of this domain with the numbers of `draw`, in draw.dtype: float32 or float64."""

    def _apply(self, draw: Draw, x: Tensor) -> Tensor:
        mixed = self._mix(x, draw).to(x.dtype)
        return mixed if self.p == 1 else torch.where(draw.happens(self.p), mixed, x)

    def _check(self, **values: float | None) -> None:
        """Refuse a hyperparameter outside its range; None stands for one that is not given."""
        for name, value in values.items():
            if value is not None:
                self.hyperparameters[name].check(type(self).__name__, name, value)

    def _draw(self, x: Tensor, layer: str) -> Draw | None:
        """Return the random numbers for this call of a layer, or None where the layer must not change."""
        if not x.is_floating_point():
            raise TypeError(f"{layer_label(layer)}: a virtual domain needs floating-point values, got {x.dtype}")
        self._ran = True
        if needs_default_generator(x):
            return Draw.like(x, None)
        seed = self._seeds.take(layer) if self._seeds else None
        return None if seed is None else Draw.like(x, seed)

    def _resolve(self, model: nn.Module, layers: Layers) -> list[tuple[str, nn.Module]]:
        """Return name and module of every layer, all checked before the first hook is registered."""
        resolved = [find_layer(model, layer) for layer in ([layers] if isinstance(layers, str | nn.Module) else layers)]
        if not resolved:
            raise ValueError("attach needs at least one layer")
        attached: set[nn.Module] = set()
        for name, module in resolved:
            hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
            if module in attached or any(getattr(hook, "domain", None) is self for hook in hooks):
                raise ValueError(
                    f"this {type(self).__name__} is already attached to {layer_label(name)}; detach() it first"
                )
            attached.add(module)
        return resolved

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_on": False, "_seeds": None}


def layer_label(layer: str) -> str:
    """Return a layer's name for a message; the model itself has the empty name."""
    return f"layer {layer!r}" if layer else "the model"


def with_first_tensor(values: tuple[Any, ...] | list[Any], change: Callable[[Tensor], Tensor], layer: str) -> Any:
    """Return a tuple or list of the same type with its first tensor changed."""
    changed = list(values)
    rebuild = getattr(values, "_make", type(values))  # a named tuple takes its fields as separate arguments
    for index, value in enumerate(changed):
        if isinstance(value, Tensor):
            changed[index] = change(value)
            return rebuild(changed)
    raise TypeError(f"{layer_label(layer)} has no tensor among its {len(changed)} values")
