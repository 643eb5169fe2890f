"""Save and restore buffers, so that a step of several passes changes them as one plain pass does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_pre_hooks as HOOKS
from torch.utils.hooks import RemovableHandle

from mecam.optim._frozen import Frozen, differs, is_plain
from mecam.optim._norms import FrozenNorms
from mecam.optim._unseen import Slot, Unseen
from mecam.optim.vector import clones

# torch.compile guards on the keys of global hooks: with a new key in each pass it would compile in each pass
KEY = RemovableHandle(HOOKS).id
WATCHERS: dict[Callable[[nn.Module], None], None] = {}
REGISTERING = threading.Lock()


class Buffers:
    """Save buffers before a later pass changes them, and restore them.

    With `model` its buffers are saved. Without, a module is saved with all its children just before it runs in a later
    pass, if it runs in this thread; what cannot be seen to run is refused (`Unseen`).

    A batch norm in eval mode is not saved if the first pass wrote to none of its buffers. A step that looks for writes
    through `.data` (`Frozen.by_value`) saves all, and remembers those that changed.

    Args:
        model: the network.
        frozen: the parameters that are not perturbed, where they are to be restored as well.
        look_into: asked before a later pass for a closure to search for modules that cannot be seen, or None.
    """

    def __init__(
        self,
        model: nn.Module | None,
        frozen: Frozen | None = None,
        *,
        look_into: Callable[[], Any] | None = None,
    ) -> None:
        self.model = model
        self.frozen = frozen
        self.compared = frozen is not None and frozen.by_value
        self.still = False  # if compared, whether no pass but the first wrote to a buffer or a frozen parameter
        self.look_into = look_into
        self.found: dict[Slot, Tensor | None] = {}  # buffer in each slot before a later pass
        self.replaced: set[Slot] = set()  # slots whose buffer a module may replace
        self.saved: list[tuple[list[Tensor], list[Tensor], list[int]]] = []  # buffers, copies, versions
        self.walked = False
        self.noted: set[nn.Module] = set()
        self.norms = FrozenNorms()

    @contextmanager
    def first(self) -> Iterator[None]:
        """Wrap the closure of the first pass; its changes to frozen parameters stay."""
        if self.frozen is None:
            yield
            return
        if self.model is not None:
            self._note(self.model)
            yield
        else:
            with ExitStack() as hooks:
                self._watch(hooks, self._note)
                yield
        self.frozen.save()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Wrap the closure of a later pass."""
        if self.model is not None:
            self.save_model()
            yield
        else:
            closure = None if self.look_into is None else self.look_into()
            unseen = None if closure is None or self.frozen is None else Unseen(closure, self.frozen.moved)
            with ExitStack() as hooks:
                self._watch(hooks, self.save)
                yield
            if unseen is not None and self.frozen is not None:
                unseen.require_seen(self.found, [*self.found.values(), *self.frozen.marks])
        self.require_saved()

    def save_model(self) -> None:
        """Copy the model's buffers once per step; walking all modules is slow."""
        if self.model is not None and not self.walked:
            self.walked = True
            self.save(self.model)
            self.replaced.update(self.found)

    def save(self, module: nn.Module) -> None:
        """Copy the buffers of the module and its children."""
        skips = self.frozen is not None and not self.compared
        hidden = {} if self.frozen is None else self.frozen.hidden
        new = dict(_slots(each for each in _modules(module) if not (skips and self.norms.is_frozen(each, hidden))))
        if self.found:
            new = {slot: buffer for slot, buffer in new.items() if self._is_new(slot, buffer)}
        self.found.update(new)
        with torch.no_grad():
            self.saved += [(some, clones(some), [b._version for b in some]) for some in _alike(new.values())]
        if self.model is None or not self.noted:
            self._note(module)  # it may not have run in the first pass

    def restore(self) -> None:
        if self.frozen is not None and self.compared:
            self._compare(self.frozen)
        for buffers, copies, _ in self.saved:
            torch._foreach_copy_(buffers, copies)
        for slot in filter(self._is_replaced, self.replaced):
            module, name = slot
            module._buffers[name] = self.found[slot]
        if self.frozen is not None:
            self.frozen.restore()

    def _note(self, module: nn.Module) -> None:
        """Mark the parameters of modules before they first run, when FSDP2 replaces them by unsharded ones."""
        if self.frozen is not None:
            new = [each for each in _modules(module) if each not in self.noted]
            self.noted.update(new)
            for each in new:
                self.norms.note(each)
            with torch.no_grad():
                self.frozen.note(p for each in new for p in each._parameters.values())

    def _is_replaced(self, slot: Slot) -> bool:
        (module, name), buffer = slot, self.found[slot]
        return name not in module._buffers or module._buffers[name] is not buffer

    def _compare(self, frozen: Frozen) -> None:
        """Find what the later passes wrote to; remember the buffers of batch norms in eval mode among it."""
        of_norms = {id(buffer) for buffers, _ in self.norms.noted.values() for buffer in buffers}
        self.still = not frozen.saved and not any(self._is_replaced(slot) for slot in self.replaced)
        for buffers, copies, versions in self.saved:
            pairs = [(b, c) for b, c in zip(buffers, copies, strict=True) if is_plain(b)]
            differ = torch.stack([differs(b, c) for b, c in pairs]).tolist() if pairs else []
            changed = [b for (b, _), other in zip(pairs, differ, strict=True) if other]
            written = [b._version for b in buffers] != versions
            self.still = self.still and not changed and not written and len(pairs) == len(buffers)
            frozen.hidden.update(dict.fromkeys(b for b in changed if id(b) in of_norms))

    def require_saved(self) -> None:
        """Refuse a later pass that changed statistics or frozen parameters of which there is no copy."""
        if self.norms.changed(self.found):
            raise RuntimeError(
                "a batch norm in eval mode got other statistics in a pass at perturbed weights, and not in the first "
                "pass. Call train() before the step, or in every call of the closure"
            )
        if self.frozen is not None and (changed := self.frozen.changed()):
            named = () if self.model is None else self.model.named_parameters()
            names: dict[Tensor, str] = {p: name for name, p in named}
            shown = ", ".join(names.get(p, f"one of shape {tuple(p.shape)}") for p in changed[:3])
            raise RuntimeError(
                f"a pass at perturbed weights changed {len(changed)} frozen parameters ({shown}) that cannot be "
                "restored: step(closure) copies those that the first pass changes, first_step() copies none. Update "
                "them only where optimizer.first_pass is True, or after the step"
            )

    def _is_new(self, slot: Slot, buffer: Tensor | None) -> bool:
        return slot not in self.found or (self.found[slot] is not buffer and slot not in self.replaced)

    def _watch(self, hooks: ExitStack, enter: Any) -> None:
        """Call `enter` with every outermost module that starts to run in this thread.

        Its children run without the hook: a compiled one would otherwise be compiled with and without it.
        """
        thread = threading.get_ident()

        def entered(module: nn.Module) -> None:
            if threading.get_ident() != thread:
                return
            enter(module)
            if isinstance(module, torch.jit.ScriptModule):  # takes no hooks, and replaces no buffers
                return

            def left(*_: Any) -> None:
                if threading.get_ident() != thread:
                    return
                leaving.remove()
                # compared here, since buffers that functional_call lends are gone after the call
                slots = _slots(_modules(module))
                self.replaced.update(s for s, b in slots if s in self.found and self.found[s] is not b)
                self._watch(hooks, enter)

            stop()
            leaving: RemovableHandle = module.register_forward_hook(left, always_call=True)
            hooks.callback(leaving.remove)

        stop = _call_with_each_module(entered)
        hooks.callback(stop)


def _call_with_each_module(entered: Callable[[nn.Module], None]) -> Callable[[], None]:
    """Call `entered` with every module that starts to run in any thread; return a function that stops this."""

    def stop() -> None:
        with REGISTERING:
            WATCHERS.pop(entered, None)
            if not WATCHERS:
                HOOKS.pop(KEY, None)

    with REGISTERING:
        WATCHERS[entered] = None
        HOOKS[KEY] = _starts
    return stop


def _starts(module: nn.Module, _: Any) -> None:
    if torch.compiler.is_compiling():  # first: what a trace reads is guarded
        return
    for entered in list(WATCHERS):
        entered(module)


def _slots(modules: Iterable[nn.Module]) -> Iterator[tuple[Slot, Tensor | None]]:
    for module in modules:
        for name, buffer in module._buffers.items():
            yield (module, name), buffer


def _modules(module: nn.Module) -> Iterable[nn.Module]:
    """Return the module and all its children. Module.modules() also builds names and is several times slower."""
    modules = {module: None}
    waiting = [module]
    while waiting:
        for child in waiting.pop()._modules.values():
            if child is not None and child not in modules:
                modules[child] = None
                waiting.append(child)
    return modules


def _alike(buffers: Iterable[Tensor | None]) -> list[list[Tensor]]:
    """Group the writable buffers by device and dtype for foreach kernels."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for buffer in buffers:
        if buffer is not None and not is_expanded(buffer):
            kinds.setdefault((buffer.device, buffer.dtype), []).append(buffer)
    return list(kinds.values())


def is_expanded(tensor: Tensor) -> bool:
    """Return whether entries share memory, so that the tensor cannot be written in place."""
    if tensor.layout != torch.strided or 0 not in tensor.stride():
        return False
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
