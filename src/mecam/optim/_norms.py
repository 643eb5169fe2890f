"""Find the batch norms whose statistics are frozen: a step of several passes need not copy them."""

from __future__ import annotations

from collections.abc import Collection
from operator import is_

from torch import Tensor, nn
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm

COUNTER = "num_batches_tracked"
COUNTING = (_BatchNorm.forward, SyncBatchNorm.forward)  # forwards that count the batches they take statistics of


class FrozenNorms:
    """Batch norms in eval mode, of which the first pass wrote to no buffer.

    Writes show in a buffer's version. Those of a batch norm in training mode to its statistics do not: its counter
    shows them.
    """

    def __init__(self) -> None:
        self.noted: dict[nn.Module, tuple[list[Tensor], list[int]]] = {}  # buffers and their versions

    def note(self, module: nn.Module) -> None:
        """Remember the buffers of a batch norm in eval mode, before it first runs."""
        counts = getattr(type(module), "forward", None) in COUNTING and not module.training
        if counts and module._buffers.get(COUNTER) is not None:
            self.noted[module] = _buffers(module)

    def is_frozen(self, module: nn.Module, hidden: Collection[Tensor]) -> bool:
        """Return whether a module need not be saved; `hidden` are tensors written to through `.data`."""
        if module not in self.noted or module.training:
            return False
        (buffers, versions), (former, of_former) = _buffers(module), self.noted[module]
        same = versions == of_former and all(map(is_, buffers, former))
        return same and not (hidden and any(buffer in hidden for buffer in buffers))

    def changed(self, saved: Collection[tuple[nn.Module, str]]) -> bool:
        """Return whether buffers were written to of which there is no copy."""
        rest = (noted for module, noted in self.noted.items() if (module, COUNTER) not in saved)
        return any([buffer._version for buffer in buffers] != versions for buffers, versions in rest)


def _buffers(module: nn.Module) -> tuple[list[Tensor], list[int]]:
    buffers = [buffer for buffer in module._buffers.values() if buffer is not None]
    return buffers, [buffer._version for buffer in buffers]
