"""Capture work on a GPU once as a CUDA graph and replay it, so that no kernel waits for Python."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_flatten, tree_unflatten

from mecam.optim._base import REFUSED
from mecam.optim._options import in_process_group, outside
from mecam.optim._update import counts_on_device
from mecam.optim.sharpness import SharpnessAware

COUNTERS = ("taken", "skipped", "begun")  # of a sharpness-aware optimizer, which no graph reads


class Captured:
    """A function of tensors, in any nesting of tuples, lists and dicts, that does the same work in every call.

    The first call runs eagerly: libraries choose their kernels, an optimizer creates its state. The second is captured.
    From then on inputs are copied into the captured ones and the graph replays. The next call overwrites the output.

    Args:
        function: must do all its work on the device, without waiting for it.
        generators: generators of the device, besides the default one, that it draws from. Replays advance them.
        fallback: called if the capture runs out of memory; returns whether another one takes less.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        generators: Sequence[torch.Generator] = (),
        *,
        fallback: Callable[[], bool] = lambda: False,
    ) -> None:
        self.function, self.generators, self.fallback = function, generators, fallback
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
            inputs = tree_unflatten(self._inputs, shape)
            if not self._captures(*inputs):  # once more when the error, which holds memory, is gone
                self._capture(*inputs)
        self._fill(leaves)
        assert self._graph is not None
        self._graph.replay()
        return self._output

    def _captures(self, *inputs: Any) -> bool:
        """Capture; return False if that runs out of memory and there is a fallback."""
        try:
            self._capture(*inputs)
        except torch.OutOfMemoryError:
            if not self.fallback():
                raise
            return False
        return True

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


def capture(optimizer: Optimizer, loss_fn: Callable[..., Tensor]) -> CapturedStep:
    """Return a function that takes training steps, on a GPU as CUDA graphs: `loss = step(*inputs)`.

    The first step runs eagerly, the second is captured, later ones replay it. A step that cannot be captured runs
    eagerly, after a warning that says why: `step.reason`. On a CPU, steps run eagerly.

    A graph repeats what Python did in the second step. Do not change the model between steps (train or eval mode,
    frozen parameters), and let the loss function draw random numbers from the device's default generator only.

    Args:
        optimizer: an optimizer of this package with nonfinite="skip", or one of torch. torch's Adam and its like are
            set to capturable=True. Rates that a schedule changes are 0-dim tensors on the device.
        loss_fn: returns the loss, a tensor, for the inputs of a step, such as images and labels. Tensors among
            these keep their shapes, and all else its values; steps with others run eagerly.

    Example:
        optimizer = MeCAM(model.parameters(), torch.optim.Adam, lr=3e-5, model=model, nonfinite="skip", fused=True)
        step = capture(optimizer, lambda images, labels: cross_entropy(model(images), labels))
        for images, labels in loader:
            loss = step(images, labels)
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer is a {type(optimizer).__name__}; it must be a torch.optim.Optimizer")
    if not callable(loss_fn):
        raise TypeError(f"loss_fn is a {type(loss_fn).__name__}; it must be a function of the inputs")
    return CapturedStep(optimizer, loss_fn)


class CapturedStep:
    """The step function of `capture`. `reason` is why steps run eagerly; None while they can be captured."""

    def __init__(self, optimizer: Optimizer, loss_fn: Callable[..., Tensor]) -> None:
        self.optimizer, self.loss_fn = optimizer, loss_fn
        self.reason = why_not(optimizer)
        self._graphs: dict[Hashable, Captured] = {}
        self._captured_for: tuple[Any, ...] | None = None  # shapes and numbers that the graphs hold
        self._warned: set[str] = set()
        optimizer.register_load_state_dict_post_hook(self._forget)
        if self.reason is None:
            _count_on_device(optimizer)
        elif device_of(optimizer).type != "cpu":
            self._warn(self.reason)

    def __call__(self, *inputs: Any) -> Tensor:
        """Take a step on these inputs; return the loss at the current weights."""
        # also for eager steps: a replay leaves its plan
        kind = self.optimizer.plan() if isinstance(self.optimizer, SharpnessAware) else None
        if self.reason is not None or not self._fits(inputs):
            return self._eager(*inputs)
        first = kind not in self._graphs
        if first:
            self._graphs[kind] = Captured(self._eager, fallback=partial(take_turns, self.optimizer))
        planned = getattr(self.optimizer, "_planned", None)
        skipped = int(self.optimizer.skipped) if first and isinstance(self.optimizer, SharpnessAware) else 0
        try:
            loss: Tensor = self._graphs[kind](*inputs)
        except BaseException as error:
            if first or not isinstance(error, (RuntimeError, ValueError, TypeError)):
                del self._graphs[kind]  # the next step of this kind is a first one again, which creates state
                if not self._graphs:
                    self._captured_for = None
                raise
            if isinstance(self.optimizer, SharpnessAware):
                self.optimizer._running = None  # nothing ran on the device: there is nothing to restore
                self.optimizer._planned = planned
            message = str(error).partition("\n")[0]
            self.reason = f"the step cannot be captured as a CUDA graph ({message})"
            self._warn(self.reason)
            return self._eager(*inputs)
        if first and isinstance(self.optimizer, SharpnessAware) and self.optimizer.skipped > skipped:
            del self._graphs[kind]  # the base optimizer has no state yet, and a capture cannot create it
        return loss if first else loss.clone()  # the next replay overwrites the graph's own

    def _eager(self, *inputs: Any) -> Tensor:
        optimizer = self.optimizer

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self.loss_fn(*inputs)
            loss.backward(create_graph=isinstance(optimizer, SharpnessAware) and optimizer.needs_graph)  # type: ignore[no-untyped-call]
            return loss

        loss: Tensor = optimizer.step(closure)  # type: ignore[assignment, arg-type]
        return loss.detach()

    def _fits(self, inputs: tuple[Any, ...]) -> bool:
        """Return whether the graphs hold for these inputs and the optimizer's present settings."""
        leaves, shape = tree_flatten(inputs)
        of_inputs = (str(shape), *((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves))
        now = of_inputs, numbers(self.optimizer)
        if self._captured_for is None:
            self._captured_for = now
        inputs_fit, numbers_fit = self._captured_for[0] == now[0], self._captured_for[1] == now[1]
        if not inputs_fit:
            self._warn("inputs of other shapes or values than the first step's run eagerly; drop_last=True avoids it")
        elif not numbers_fit:
            before, after = dict(self._captured_for[1]), dict(now[1])
            name = next(key for key in {**before, **after} if before.get(key) != after.get(key))[1]
            self._warn(
                f"{name} has changed, and a CUDA graph holds numbers as they were: steps run eagerly. Give {name} as a "
                f"tensor on the device, {name}=torch.tensor(..., device=...), which schedules fill in place"
            )
        return bool(inputs_fit and numbers_fit)

    def _forget(self, _: Optimizer) -> None:
        """Capture anew: a loaded state is other tensors than those in the graphs."""
        self._graphs.clear()
        self._captured_for = None
        if self.reason is None:
            _count_on_device(self.optimizer)

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(f"mecam.optim.capture: {message}", stacklevel=outside())


def take_turns(optimizer: Optimizer) -> bool:
    """Capture passes in turn, in the step under way and later; return whether they would have been side by side."""
    if not isinstance(optimizer, SharpnessAware) or not (optimizer.side_by_side and optimizer._fits):
        return False
    if optimizer._running is not None:  # what was captured is a single pass of the step
        return False
    optimizer.side_by_side, optimizer._planned = False, True
    return True


def why_not(optimizer: Optimizer) -> str | None:
    """Return why steps of this optimizer cannot be captured; None if they can."""
    device = device_of(optimizer)
    if device.type != "cuda":
        return f"parameters are on {device.type}, and CUDA graphs are for GPUs: steps run eagerly"
    base = optimizer
    if isinstance(optimizer, SharpnessAware):
        name, base = type(optimizer).__name__, optimizer.base_optimizer
        if optimizer.nonfinite != "skip":
            return (
                f"nonfinite={optimizer.nonfinite!r} is decided or counted on the host; give {name} nonfinite='skip', "
                "which the device decides"
            )
        if optimizer.track:
            return f"{name} has track=True, whose numbers a graph does not return; leave it out"
        if optimizer.capturable != "steps" and counts_on_device(base):
            return f"{name} decides in Python what a step is, or needs the random state or a Hessian: steps run eagerly"
    if type(base) in REFUSED:
        return f"{type(base).__name__}: {REFUSED[type(base)]}; steps run eagerly"
    if not counts_on_device(base):
        return f"{type(base).__name__} is not of torch.optim, and may count its steps in Python: steps run eagerly"
    if in_process_group():
        return "torch.distributed is in use, and gradients are exchanged outside of the graph: steps run eagerly"
    return None


def _count_on_device(optimizer: Optimizer) -> None:
    """Let the optimizer count its steps in tensors on the device, as a capture requires."""
    base = optimizer.base_optimizer if isinstance(optimizer, SharpnessAware) else optimizer
    for settings in (base.defaults, *base.param_groups):
        if "capturable" in settings:
            settings["capturable"] = True
    for parameter, state in base.state.items():
        if isinstance(state.get("step"), Tensor):
            state["step"] = state["step"].to(parameter.device)
    base._warned_capturable_if_run_uncaptured = True  # the first step is eager on purpose


def device_of(optimizer: Optimizer) -> torch.device:
    """Return the device of the first parameter."""
    device: torch.device = optimizer.param_groups[0]["params"][0].device
    return device


def numbers(optimizer: Optimizer) -> list[tuple[tuple[int, str], Any]]:
    """Return the settings that a graph holds as they are: all but tensors, by group and name."""
    return [
        ((number, name), value)
        for number, group in enumerate(optimizer.param_groups)
        for name, value in group.items()
        if name != "params" and not isinstance(value, Tensor) and not name.endswith(COUNTERS)
    ]


def _on_own_stream(function: Callable[[], Any]) -> Any:
    """Run on a side stream, as a capture does: gradients are accumulated on the stream where they first were."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        output = function()
    torch.cuda.current_stream().wait_stream(stream)
    return output
