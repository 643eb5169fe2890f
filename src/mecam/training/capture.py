"""Capture work on a GPU once as a CUDA graph and replay it, so that no kernel waits for Python."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten


class Captured:
    """A function of tensors, in any nesting of tuples, lists and dicts, that does the same work in every call.

    The first call runs eagerly: libraries choose their kernels, an optimizer creates its state. The second is captured.
    From then on inputs are copied into the captured ones and the graph replays. The next call overwrites the output.

    Args:
        function: must do all its work on the device, without waiting for it.
        generators: generators of the device, besides the default one, that it draws from. Replays advance them.
    """

    def __init__(self, function: Callable[..., Any], generators: Sequence[torch.Generator] = ()) -> None:
        self.function, self.generators = function, generators
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Any] = []
        self._output: Any = None
        self._ran = False

    def __call__(self, *inputs: Any) -> Any:
        if not self._ran:
            self._ran = True
            return _on_own_stream(lambda: self.function(*inputs))
        leaves, shape = tree_flatten(inputs)
        if self._graph is None:
            self._inputs = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            self._capture(*tree_unflatten(self._inputs, shape))
        self._fill(leaves)
        assert self._graph is not None
        self._graph.replay()
        return self._output

    def _capture(self, *inputs: Any) -> None:
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        gc.collect()
        collects = gc.isenabled()
        gc.disable()  # freeing a graph during the capture of another one spoils the capture
        try:
            # thread_local: another thread may use the GPU meanwhile
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._output = self.function(*inputs)
        finally:
            if collects:
                gc.enable()
        self._graph = graph

    def _fill(self, leaves: list[Any]) -> None:
        for held, leaf in zip(self._inputs, leaves, strict=True):
            if isinstance(held, Tensor):
                held.copy_(leaf, non_blocking=True)
            elif held != leaf:
                raise ValueError(f"captured with {held!r}, and now called with {leaf!r}: only tensors may change")


@dataclass
class Captures:
    """What a run captures, and its graphs."""

    what: Literal["steps", "passes", "nothing"]
    graphs: dict[Hashable, Captured] = field(default_factory=dict)  # by kind of step
    forward: Captured | None = None  # for evaluations


def _on_own_stream(function: Callable[[], Any]) -> Any:
    """Run on a side stream, as a capture does: gradients are accumulated on the stream where they first were."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        output = function()
    torch.cuda.current_stream().wait_stream(stream)
    return output
