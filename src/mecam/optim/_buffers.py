"""Batch-norm statistics, and any other buffer, change as in one plain pass however often a step runs the model."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from mecam.optim.vector import clones

Slot = tuple[nn.Module, str]  # where a buffer hangs


class Buffers:
    """Saves buffers before a later pass touches them, and puts them back.

    With `model` its buffers are saved. Without, a module is saved with all its children just before it runs in a later
    pass; so a module given to torch.compile is seen, one that runs inside a compiled function or after model.compile()
    is not.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self.model = model
        self.seen: dict[nn.Module, None] = {}
        self.found: dict[Slot, Tensor | None] = {}  # what hung there before a later pass
        self.replaced: set[Slot] = set()  # where a module may have hung up another tensor
        self.saved: list[tuple[list[Tensor], list[Tensor]]] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Around the closure of a later pass."""
        if self.model is not None:
            if not self.found:  # once a step: a walk over all modules takes its time
                self.save(self.model)
                self.replaced.update(self.found)
            yield
            return
        with ExitStack() as hooks:
            self._watch(hooks)
            yield

    def save(self, module: nn.Module) -> None:
        """Copy the buffers of the module and its children."""
        if self.model is None:
            self.seen.update(dict.fromkeys(_modules(module)))
        new = dict(_slots(module))
        if self.found:
            new = {slot: buffer for slot, buffer in new.items() if self._is_new(slot, buffer)}
        self.found.update(new)
        with torch.no_grad():
            self.saved += [(alike, clones(alike)) for alike in _alike(new.values())]

    def restore(self) -> None:
        for buffers, copies in self.saved:
            torch._foreach_copy_(buffers, copies)
        for module, name in self.replaced:
            buffer, hung = self.found[module, name], module._buffers
            if name not in hung or hung[name] is not buffer:
                hung[name] = buffer

    def require_all_seen(self, parameters: Iterable[Tensor]) -> None:
        """Refuse a forward that ran compiled out of sight: its batch-norm statistics would change in every pass."""
        if self.model is not None or not _anything_compiled():
            return
        owned = {id(p) for module in self.seen for p in module._parameters.values()}
        if any(id(p) not in owned for p in parameters):
            raise RuntimeError(
                "some parameters belong to no module that was seen to run. Inside a compiled function and after "
                "model.compile() batch-norm layers cannot be seen, and their statistics would change in every pass. "
                "Give the optimizer the model: SAM(model.parameters(), ..., model=model); or, where there is none, "
                "model=nn.ParameterList(parameters)"
            )

    def _is_new(self, slot: Slot, buffer: Tensor | None) -> bool:
        return slot not in self.found or (self.found[slot] is not buffer and slot not in self.replaced)

    def _watch(self, hooks: ExitStack) -> None:
        """Save every outermost module that starts to run.

        Its children are saved with it, so they run without the hook: a compiled one would otherwise be compiled again
        for each new hook.
        """

        def entered(module: nn.Module, _: Any) -> None:
            if torch.compiler.is_compiling():
                return
            self.save(module)
            if isinstance(module, torch.jit.ScriptModule):  # takes no hooks, and replaces no buffers
                return

            def left(*_: Any) -> None:
                leaving.remove()
                # compared here, since buffers that functional_call lends are gone after the call
                self.replaced.update(s for s, b in _slots(module) if s in self.found and self.found[s] is not b)
                self._watch(hooks)

            watching.remove()
            leaving: RemovableHandle = module.register_forward_hook(left, always_call=True)
            hooks.callback(leaving.remove)

        watching = register_module_forward_pre_hook(entered)
        hooks.callback(watching.remove)


def _slots(module: nn.Module) -> Iterator[tuple[Slot, Tensor | None]]:
    for child in _modules(module):
        for name, buffer in child._buffers.items():
            yield (child, name), buffer


def _modules(module: nn.Module) -> Iterable[nn.Module]:
    """The module and all its children, each once. (Module.modules() also makes their names: several times as slow.)"""
    found = {module: None}
    waiting = [module]
    while waiting:
        for child in waiting.pop()._modules.values():
            if child is not None and child not in found:
                found[child] = None
                waiting.append(child)
    return found


def _alike(buffers: Iterable[Tensor | None]) -> list[list[Tensor]]:
    """The buffers by device and dtype, as foreach kernels want them; without those that nobody can write to."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for buffer in buffers:
        if buffer is not None and not is_expanded(buffer):
            kinds.setdefault((buffer.device, buffer.dtype), []).append(buffer)
    return list(kinds.values())


def is_expanded(tensor: Tensor) -> bool:
    """Whether entries share memory, so that nobody can write to it in place."""
    if tensor.layout != torch.strided or 0 not in tensor.stride():
        return False
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def _anything_compiled() -> bool:
    dynamo = sys.modules.get("torch._dynamo.utils")
    # graphs are not counted where a hook was all there was to compile, frames not under fullgraph=True
    return dynamo is not None and any(
        dynamo.counters[kind][count] > 0 for kind, count in (("stats", "unique_graphs"), ("frames", "total"))
    )
