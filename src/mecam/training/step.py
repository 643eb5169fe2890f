"""One training step: a batch, the method's draws, the passes of the optimizer, the averages.

Where `run.captures` allows it, a step or each of its passes is replayed as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from mecam import ranks
from mecam.methods import Batch
from mecam.optim import clear_state
from mecam.optim._domains import ByDomain
from mecam.optim.graphs import Captured, take_turns
from mecam.runs import RunFolder
from mecam.training import nonfinite
from mecam.training.build import batch_size_error
from mecam.training.finetuning import accumulated
from mecam.training.run import Run

Update = tuple[Tensor | None, Any]  # the loss at theta, and the method's next state


def train_step(run: Run, step: int) -> Tensor | None:
    """Take one step; return the loss at theta, or None where the main optimizer rests."""
    method, skip, before = run.method, run.recipe.nonfinite == "skip", run.feed.state
    buffers = nonfinite.copy_buffers(run.trained) if skip else {}
    batch = run.feed.next(step)
    draw = method.draw(batch, run.draws)
    _set_rates(run, step)
    if method.restarts(step):
        clear_state(run.optimizer)
    if method.changes(step):
        run.captures.graphs.clear()
    try:
        loss, state = (None, run.method_state) if method.declines(step) else _update(run, batch, draw)
        state = method.after(run.trained, batch, draw, state)
    except FloatingPointError as error:
        raise nonfinite.BadStep(step, run.feed.names(before), batch, str(error)) from error
    except ValueError as error:
        raise batch_size_error(run.recipe, run.network.preprocessing.size, error) from error
    if skip:
        nonfinite.restore_buffers(run.trained, buffers)
        state = nonfinite.finite_or(state, run.method_state)
    elif run.machine.device.type == "cuda":  # where the optimizer skips; its count is read at evaluations
        run.unread.append((step, before, torch.as_tensor(run.optimizer.skipped, device=run.machine.device).clone()))
    run.method_state = state
    ranks.average(leaf for leaf in tree_leaves(run.method_state) if isinstance(leaf, Tensor))
    run.averaging.update(run.trained)
    return loss


def start_tracking(run: Run, folder: RunFolder, after: int) -> None:
    """Track curvature in the run's folder, which may hold the records of steps up to `after`."""
    from mecam.analysis.tracking import Tracker

    run.tracker = Tracker(
        run.optimizer,
        every=run.recipe.track,
        path=folder.tracking_file if run.machine.writes else None,
        write=folder.writer.write,
        measure=run.recipe.track_measures or None,
        extrapolate=not run.method.surgery,
    )
    run.tracker.resume(after)


def on_device(tree: Any, device: torch.device) -> Any:
    """Move the tensors of a running state to the device."""
    return tree_map_only(Tensor, lambda tensor: tensor.to(device), tree)


def _set_rates(run: Run, step: int) -> None:
    of_method = run.method.rates(step)
    rates = [group.factor * of_method[group.of] for group in run.groups]
    run.rates.set(step, rates)
    for group, rate in zip(run.optimizer.param_groups, rates, strict=True):
        for parameter in group["params"]:
            if parameter.requires_grad != (rate > 0):
                parameter.requires_grad_(rate > 0)


def _update(run: Run, batch: Batch, draw: Any) -> Update:
    """Take the optimizer's step, eagerly or as one CUDA graph per kind of step."""
    if run.captures.what != "steps":
        return _eager_update(run, batch, draw, run.method_state)
    kind, graphs = run.optimizer.plan(), run.captures.graphs
    skipped = None if kind in graphs else int(run.optimizer.skipped)
    update: Update = _replay(run, _eager_update, batch, draw, run.method_state, kind)
    if skipped is not None and run.optimizer.skipped > skipped:
        del graphs[kind]  # the base optimizer has no state yet, and a capture cannot create it
    return update


def _eager_update(run: Run, batch: Batch, draw: Any, state: Any) -> Update:
    one_pass = _captured_pass if run.captures.what == "passes" else _eager_pass
    states: list[Any] = []

    def closure() -> Tensor:
        this_pass = partial(one_pass, run, batch, draw, state)
        loss, next_state = this_pass() if run.overlap is None else run.overlap.average(this_pass)
        states.append(next_state)
        if ranks.count() > 1:
            ranks.average([loss] if run.overlap else [loss, *(parameter.grad for parameter in run.parameters)])
        return loss

    _clear_gradients(run)  # before the step: no optimizer then has to find out whether the closure does
    loss = run.optimizer.step(closure) if run.tracker is None else run.tracker.step(closure, batch.step)
    return loss, states[0]


def _eager_pass(run: Run, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:
    """Fill the gradients at the current weights; return the loss and the method's next state."""
    _clear_gradients(run)
    optimizer, method, parts = run.optimizer, run.method, run.recipe.accumulate
    if parts > 1:
        return accumulated(method, run.trained, batch, state, parts)
    if not isinstance(optimizer, ByDomain):
        return method.gradient(run.trained, batch, draw, state, graph=optimizer.needs_graph)

    def losses(images: Batch) -> Tensor:
        return method.domain_losses(run.trained, images, draw, state)

    one_by_one = [lambda part=part: losses(part).mean() for part in batch.parts()]
    loss = optimizer.over_domains(one_by_one if optimizer.one_at_a_time else losses(batch))
    loss.backward(create_graph=optimizer.needs_graph)  # type: ignore[no-untyped-call]
    return loss.detach(), state


def _captured_pass(run: Run, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:
    """`_eager_pass` as a CUDA graph, for optimizers that decide on the host which passes to take."""

    def with_gradients(*inputs: Any) -> tuple[Tensor, Any, list[Tensor | None]]:
        return *_eager_pass(*inputs), [parameter.grad for parameter in run.parameters]

    loss, state, gradients = _replay(run, with_gradients, batch, draw, state)
    for parameter, gradient in zip(run.parameters, gradients, strict=True):
        # the next replay fills the same memory, and optimizers keep gradients over passes
        parameter.grad = None if gradient is None else gradient.clone()
    return loss.clone(), state


def _replay(run: Run, function: Callable[..., Any], batch: Batch, draw: Any, state: Any, kind: Hashable = None) -> Any:
    graphs = run.captures.graphs
    if kind not in graphs:
        constant = batch.domains, batch.step, batch.class_weights
        graphs[kind] = Captured(
            lambda x, y, *rest: function(run, Batch(x, y, *constant), *rest),
            fallback=partial(take_turns, run.optimizer),
        )
    return graphs[kind](*on_device((batch.images, batch.labels, draw, state), run.machine.device))


def _clear_gradients(run: Run) -> None:
    for parameter in run.parameters:
        parameter.grad = None  # as zero_grad does, at a tenth of its cost
