"""Parameters that a forward changes itself, such as the key encoder of MoCo or BYOL, change as in one plain pass."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import Tensor

from mecam.optim._shards import local


class Mark:
    """A tensor at one moment: its memory and its version, not its values."""

    __slots__ = ("alias", "tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = local(tensor)
        self.alias = self.tensor.detach()  # keeps the memory, so that no later tensor is put at the same address
        self.version = self.alias._version

    def changed(self) -> bool:
        """Whether the tensor was written to, or given other memory (`parameter.data = ...`)."""
        return self.alias._version != self.version or self._moved()

    def restore(self, copy: Tensor) -> None:
        if self.alias._version != self.version:
            self.alias.copy_(copy)
        if self._moved():
            self.tensor.data = self.alias

    def _moved(self) -> bool:
        # a wrapper subclass (quantized weights) has no memory of its own
        plain = type(self.tensor) in (Tensor, torch.nn.Parameter)
        return plain and self.alias.data_ptr() != self.tensor.data_ptr()


class Frozen:
    """Undo what later passes do to parameters that are not perturbed.

    Only the parameters that the first pass changed are copied: frozen weights that nothing writes to cost no memory.

    Args:
        moved: ids of the parameters that the optimizer perturbs, which are restored elsewhere.
    """

    def __init__(self, moved: Collection[int]) -> None:
        self.moved = moved
        self.marks: dict[Tensor, Mark] = {}
        self.saved: dict[Tensor, tuple[Mark, Tensor]] = {}

    def note(self, parameters: Iterable[Tensor | None]) -> None:
        """Mark parameters before a module runs."""
        for parameter in parameters:
            if parameter is not None and id(parameter) not in self.moved and parameter not in self.marks:
                self.marks[parameter] = Mark(parameter)

    def save(self) -> None:
        """Copy what the first pass changed."""
        for parameter, mark in self.marks.items():
            if mark.changed():
                self.saved[parameter] = Mark(parameter), local(parameter).detach().clone()

    def changed(self) -> list[Tensor]:
        """Parameters that changed, but not in the first pass: there is no copy of them."""
        return [p for p, mark in self.marks.items() if p not in self.saved and mark.changed()]

    def restore(self) -> None:
        for mark, copy in self.saved.values():
            mark.restore(copy)
