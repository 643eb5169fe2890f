"""A training step: the captured way takes the eager one's, here with graphs that run their function in every call."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mecam.data.shapes import shapes
from mecam.recipe import Recipe
from mecam.training import step as module
from mecam.training.machine import find_machine
from mecam.training.run import Run
from mecam.training.step import train_step

DATA = shapes(per_class=4)


class Graph:
    """A stand-in for `Captured` that needs no GPU."""

    def __init__(self, function: Callable[..., Any], *, fallback: Callable[[], bool]) -> None:
        self.function, self.fallback, self.calls = function, fallback, 0

    def __call__(self, *inputs: Any) -> Any:
        self.calls += 1
        return self.function(*inputs)


def run_of(what: str, **values: Any) -> Run:
    run = Run(
        Recipe(**{"target": "art", "batch": 4, "steps": 6, "image_size": 16, **values}), find_machine("cpu"), DATA
    )
    run.captures.what = what  # type: ignore[assignment]
    return run


@pytest.mark.parametrize("what", ["steps", "passes"])
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"method": "fishr", "method_settings": {"anneal": 2500.0}},  # restarts at step 3 of 6
        {"method": "trm", "method_settings": {"anneal": 2500.0}},  # another objective from step 3 on, without a restart
        {"method": "dann"},  # declines steps
        {"optimizer": "mecam", "virtual": "none"},
        {"optimizer": "looksam", "optimizer_settings": {"k": 2}},  # steps of two kinds
    ],
)
def test_captured_steps_are_the_eager_ones(what: str, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Captured", Graph)
    eager, captured = run_of("nothing", **values), run_of(what, **values)
    for step in range(6):
        torch.manual_seed(step)
        expected = train_step(eager, step)
        torch.manual_seed(step)
        torch.testing.assert_close(train_step(captured, step), expected, rtol=0, atol=0)
    torch.testing.assert_close(captured.trained.state_dict(), eager.trained.state_dict(), rtol=0, atol=0)
    graphs: dict[Any, Any] = captured.captures.graphs
    assert all(graph.calls > 1 for graph in graphs.values())
    assert len(graphs) == (2 if what == "steps" and values.get("optimizer") == "looksam" else 1)


def test_a_graph_waits_for_the_first_step_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A skipped step leaves the base optimizer without the state that a capture needs."""
    monkeypatch.setattr(module, "Captured", Graph)
    run = run_of("steps", nonfinite="skip")
    weight = run.parameters[0]
    before = weight.detach().clone()
    weight.data.fill_(torch.nan)
    train_step(run, 0)
    assert (run.optimizer.skipped, run.captures.graphs) == (1, {})
    weight.data.copy_(before)
    train_step(run, 1)
    assert (run.optimizer.skipped, len(run.captures.graphs)) == (1, 1)


@pytest.mark.parametrize(
    ("frozen", "compiled", "folds"), [(True, False, True), (False, False, False), (True, True, False)]
)
def test_frozen_batch_norm_is_folded_on_a_cpu(frozen: bool, compiled: bool, folds: bool) -> None:
    run = run_of("nothing", freeze_bn=frozen, compile="always" if compiled else "never")
    norms = [module for module in run.network.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert norms
    assert all(getattr(norm, "folds", False) is folds for norm in norms)
