"""Save and restore frozen parameters that a forward changes, such as the key encoder of MoCo or BYOL."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor

from mecam.optim._shards import local

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Mark:
    """The memory and version of a tensor at one moment."""

    __slots__ = ("alias", "tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = local(tensor)
        self.alias = self.tensor.detach()  # keeps the memory, so that no later tensor is put at the same address
        self.version = self.alias._version

    def changed(self) -> bool:
        """Return whether the tensor was written to, or given other memory (`parameter.data = ...`)."""
        return self.alias._version != self.version or self._moved()

    def restore(self, copy: Tensor) -> None:
        self.alias.copy_(copy)
        if self._moved():
            self.tensor.data = self.alias

    def _moved(self) -> bool:
        return is_plain(self.tensor) and self.alias.data_ptr() != self.tensor.data_ptr()


class Frozen:
    """Undo what later passes do to parameters that are not perturbed.

    Only the parameters that the first pass changed are copied: frozen weights that nothing writes to cost no memory.

    Args:
        moved: ids of the parameters that the optimizer perturbs, which are restored elsewhere.
        hidden: tensors that are written to through `.data`, which does not count as a new version.
        by_value: look for such parameters, by a checksum of all. It waits for the device.
    """

    def __init__(
        self, moved: Collection[int], hidden: dict[Tensor, None] | None = None, *, by_value: bool = False
    ) -> None:
        self.moved = moved
        self.hidden: dict[Tensor, None] = {} if hidden is None else hidden
        self.by_value = by_value
        self.sums: dict[Tensor, Tensor] = {}
        self.marks: dict[Tensor, Mark] = {}
        self.saved: dict[Tensor, tuple[Mark, Tensor]] = {}

    def note(self, parameters: Iterable[Tensor | None]) -> None:
        """Mark parameters before a module runs."""
        for parameter in parameters:
            if parameter is None or id(parameter) in self.moved or not has_values(parameter):
                continue
            if parameter not in self.marks:
                self.marks[parameter] = Mark(parameter)
                if self.by_value and is_plain(parameter):
                    self.sums[parameter] = _checksum(parameter)

    def save(self) -> None:
        """Copy what the first pass changed."""
        hidden = [p for p in self._other_values(list(self.sums)) if not self.marks[p].changed()]
        self.hidden.update(dict.fromkeys(hidden))
        # an average of equal weights may have changed some of them only
        suspected = self.sums if hidden else {}
        for parameter, mark in self.marks.items():
            if parameter in self.hidden or parameter in suspected or mark.changed():
                self.saved[parameter] = Mark(parameter), local(parameter).detach().clone()

    def changed(self) -> list[Tensor]:
        """Return the parameters that changed after the first pass and were not saved."""
        rest = [p for p in self.marks if p not in self.saved]
        by_version = [p for p in rest if self.marks[p].changed()]
        return by_version or self._other_values([p for p in rest if p in self.sums])

    def restore(self) -> None:
        suspected = [p for p in self.saved if p in self.sums and p not in self.hidden]
        self.hidden.update(dict.fromkeys(self._other_values(suspected)))
        for parameter, (mark, copy) in self.saved.items():
            if parameter in self.hidden or mark.changed():
                mark.restore(copy)

    def _other_values(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Return the parameters whose checksums changed."""
        if not parameters:
            return []
        device = parameters[0].device
        same = torch.stack([(_checksum(p) == self.sums[p]).to(device) for p in parameters]).tolist()
        return [p for p, equal in zip(parameters, same, strict=True) if not equal]


def has_values(tensor: Tensor) -> bool:
    """Return whether the tensor can be marked. Lazy tensors have no shape; those of torch.func live for one call."""
    return not torch.nn.parameter.is_lazy(tensor) and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def is_plain(tensor: Tensor) -> bool:
    """Return whether the tensor is strided and no subclass (quantized weights may have no memory of their own)."""
    strided = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
    return strided and not tensor.is_meta and not tensor.is_quantized


def differs(tensor: Tensor, other: Tensor) -> Tensor:
    """Return whether the bits of two plain tensors of one shape and dtype differ."""
    return (_bits(tensor) != _bits(other)).any()


def _checksum(tensor: Tensor) -> Tensor:
    """Sum the bits as integers. Almost any change alters the sum."""
    return _bits(tensor).sum()


def _bits(tensor: Tensor) -> Tensor:
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return tensor.detach().view(INTEGERS[tensor.element_size()])
