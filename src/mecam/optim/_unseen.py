"""Find buffers that a pass changed in modules whose forward was not observed.

Hooks see a module that is called. They do not see one inside a compiled function, nor one that runs in another method
than `__call__` (LightningModule.training_step). So the closure is searched for modules once, and what they hold is
compared by versions.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from mecam.optim._frozen import Mark, has_values

LARGEST_SEARCH = 20_000  # objects
Slot = tuple[nn.Module, str]  # a module and an attribute name


class Unseen:
    """Mark the tensors of all modules that the closure can reach, before a pass.

    Args:
        closure: what runs them.
        moved: ids of the parameters that the optimizer perturbs.
    """

    def __init__(self, closure: Any, moved: Collection[int]) -> None:
        self.marks: dict[Slot, tuple[Tensor, Mark]] = {}
        for module in modules_in(closure):
            for name, tensor in (*module._buffers.items(), *module._parameters.items()):
                if isinstance(tensor, Tensor) and id(tensor) not in moved and has_values(tensor):
                    self.marks[module, name] = tensor, Mark(tensor)

    def require_seen(self, seen: Collection[Slot], tensors: Collection[Tensor | None]) -> None:
        """Refuse a pass that changed a tensor other than those in these slots or in `tensors`."""
        known = set(map(id, tensors))
        for (module, name), (tensor, mark) in self.marks.items():
            if (module, name) in seen or id(tensor) in known:
                continue
            if mark.changed() or module._buffers.get(name, module._parameters.get(name)) is not tensor:
                raise RuntimeError(
                    f"{name} of {type(module).__name__} changed during a perturbed pass, but its forward was not "
                    "observed (compiled, or called through another method). Pass model= with a module that contains "
                    "it: SAM(model.parameters(), ..., model=model)"
                )


def frames_compiled() -> int:
    """Count what torch.compile has compiled in this process: each time it may hide other modules."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return 0
    # graphs are not counted where a hook was all there was to compile, frames not under fullgraph=True
    return int(dynamo.counters["stats"]["unique_graphs"] + dynamo.counters["frames"]["total"])


def modules_in(closure: Any) -> list[nn.Module]:
    """Return the modules that a closure can reach through its variables, globals and their attributes."""
    modules: dict[nn.Module, None] = {}
    seen: dict[int, Any] = {}
    waiting = deque([closure])
    while waiting and len(seen) < LARGEST_SEARCH:
        each = waiting.popleft()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        if not issubclass(type(each), nn.Module):
            with suppress(Exception):  # best effort: an object may raise anything from its attributes
                waiting.extend(_inside(each))
        elif not isinstance(each, torch.jit.ScriptModule):  # those are seen, and keep their buffers elsewhere
            modules.update(dict.fromkeys(each.modules()))
    return list(modules)


def _inside(each: Any) -> Iterable[Any]:
    match each:
        case FunctionType():
            cells = [cell.cell_contents for cell in each.__closure__ or () if cell != CellType()]
            library = (each.__module__ or "").startswith(("torch.", "mecam.optim."))  # the optimizer is a variable, too
            named = [] if library else _looked_up(set(_names(each.__code__)), each.__globals__)
            return [*cells, *named, *(each.__defaults__ or ()), *vars(each).values()]
        case MethodType():
            return each.__self__, each.__func__
        case partial():
            return each.func, *each.args, *each.keywords.values()
        case dict() | list() | tuple() | set():
            items = each.values() if isinstance(each, dict) else each
            return [item for item in items if not isinstance(item, (str, int, float, Tensor))]
        case type() | ModuleType() | Tensor():
            return ()
    return [*getattr(each, "__dict__", {}).values()]


def _looked_up(names: set[str], outside: dict[str, Any]) -> list[Any]:
    """Look up names among globals and the attributes of imported modules."""
    values = [outside[name] for name in names if name in outside]
    modules = [vars(each) for each in values if isinstance(each, ModuleType)]
    return values + [inside[name] for inside in modules for name in names if name in inside]


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that a function, and functions defined in it, look up outside."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
