"""Work on a GPU, recorded once as a CUDA graph and replayed, so that no kernel waits for Python."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten


class Recorded:
    """A function of tensors, in any nesting of tuples, lists and dicts, whose work is the same in every call.

    The first call runs as it is: libraries choose their kernels, an optimizer makes its state. The second is recorded,
    and from then on the graph is replayed on the inputs, copied to where the recorded ones lay. What comes out is
    overwritten by the next call.

    Args:
        function: all it does must happen on the device, without waiting for it.
        generators: of the device, besides the default one, that it draws from. Replays go on with their streams.
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
            return _beside(lambda: self.function(*inputs))
        leaves, shape = tree_flatten(inputs)
        if self._graph is None:
            self._inputs = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            self._record(*tree_unflatten(self._inputs, shape))
        self._place(leaves)
        assert self._graph is not None
        self._graph.replay()
        return self._output

    def _record(self, *inputs: Any) -> None:
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        gc.collect()
        collects = gc.isenabled()
        gc.disable()  # a graph that is freed while another is recorded spoils the recording
        try:
            # thread_local: another thread may use the GPU meanwhile
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._output = self.function(*inputs)
        finally:
            if collects:
                gc.enable()
        self._graph = graph

    def _place(self, leaves: list[Any]) -> None:
        for held, leaf in zip(self._inputs, leaves, strict=True):
            if isinstance(held, Tensor):
                held.copy_(leaf, non_blocking=True)
            elif held != leaf:
                raise ValueError(f"recorded with {held!r}, and now called with {leaf!r}: only tensors may change")


def _beside(function: Callable[[], Any]) -> Any:
    """On a stream of its own, as a recording will be: gradients are accumulated on the stream they first were."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        output = function()
    torch.cuda.current_stream().wait_stream(stream)
    return output
