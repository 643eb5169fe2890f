"""`capture`: the plain step on a CPU, and which steps are replayed, here by graphs that run their function."""

import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.optim import SAM, LookSAM, MeCAM, SharpnessAware, capture, graphs
from mecam.optim._passes import Passes
from mecam.optim.graphs import CapturedStep, why_not
from tests.optim.test_passes import METHODS

ADAM = {"lr": 0.01, "fused": True}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()


def batches(*sizes: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 6, generator=generator).double(), torch.randint(0, 3, (size,), generator=generator))
        for size in sizes
    ]


def loss_of(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, y: F.cross_entropy(model(x), y)


def by_hand(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> Tensor:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    loss: Tensor = optimizer.step(closure)
    return loss


@pytest.mark.parametrize("method", [*METHODS, None])
def test_on_a_cpu_it_is_the_plain_step(method: type[SharpnessAware] | None) -> None:
    one, two = network(), network()

    def build(model: nn.Module) -> torch.optim.Optimizer:
        if method is None:
            return torch.optim.Adam(model.parameters(), lr=0.01)
        return method(model.parameters(), torch.optim.Adam, lr=0.01, model=model)

    optimizer = build(two)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = capture(build(one), loss_of(one))
    assert "GPU" in str(step.reason)
    for x, y in batches(8, 8, 5):
        loss = step(x, y)
        assert not loss.requires_grad
        torch.testing.assert_close(loss, by_hand(two, optimizer, x, y).detach(), rtol=0, atol=0)
    torch.testing.assert_close(one.state_dict(), two.state_dict(), rtol=0, atol=0)


class Graph:
    """A stand-in for `Captured` that needs no GPU. The second call, where a capture would be, raises `unfit`."""

    made: list["Graph"] = []
    unfit: BaseException | None = None

    def __init__(self, function: Callable[..., Any], *, fallback: Callable[[], bool]) -> None:
        self.function, self.fallback, self.calls = function, fallback, 0
        self.made.append(self)

    def __call__(self, *inputs: Any) -> Any:
        self.calls += 1
        if self.calls == 2 and self.unfit is not None:
            raise self.unfit
        return self.function(*inputs)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """Capture on a CPU, too; return the graphs."""
    monkeypatch.setattr(graphs, "why_not", lambda _: None)
    monkeypatch.setattr(graphs, "Captured", Graph)
    monkeypatch.setattr(Graph, "made", [])
    return Graph.made


def captured(optimizer: torch.optim.Optimizer, model: nn.Module) -> CapturedStep:
    return capture(optimizer, loss_of(model))


def test_a_graph_for_each_kind_of_step(made: list[Graph]) -> None:
    model = network()
    step = captured(LookSAM(model.parameters(), torch.optim.Adam, k=3, model=model, nonfinite="skip", **ADAM), model)
    for x, y in batches(*[8] * 6):
        step(x, y)
    assert sorted(graph.calls for graph in made) == [2, 4]


@pytest.mark.parametrize("method", [SAM, LookSAM])
def test_start_and_every_hold_over_replayed_and_eager_steps(
    made: list[Graph], monkeypatch: pytest.MonkeyPatch, method: type[SharpnessAware]
) -> None:
    one, two = network(), network()
    due = {"start": 3, "every": 2}
    optimizer = method(one.parameters(), torch.optim.SGD, lr=0.1, model=one, nonfinite="skip", **due)

    class Replayed(Graph):
        def __call__(self, *inputs: Any) -> Any:
            planned = optimizer._planned
            result = super().__call__(*inputs)
            optimizer._planned = planned  # a replay does not run `step`
            return result

    monkeypatch.setattr(graphs, "Captured", Replayed)
    step, by = captured(optimizer, one), method(two.parameters(), torch.optim.SGD, lr=0.1, model=two, **due)
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        for x, y in batches(8, 8, 8, 8, 5, 8, 8, 8, 8):
            step(x, y)
            by_hand(two, by, x, y)
    assert ["other shapes" in str(warning.message) for warning in reported] == [True]
    # LookSAM adds nothing in steps before `start`
    assert sorted(graph.calls for graph in made) == ([3, 5] if method is SAM else [1, 3, 4])
    torch.testing.assert_close(one.state_dict(), two.state_dict(), rtol=0, atol=0)


def test_other_shapes_run_eagerly_and_are_reported_once(made: list[Graph]) -> None:
    one, two = network(), network()
    step = captured(SAM(one.parameters(), torch.optim.SGD, lr=0.1, model=one, nonfinite="skip"), one)
    optimizer = SAM(two.parameters(), torch.optim.SGD, lr=0.1, model=two)
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        for x, y in batches(8, 8, 5, 8, 5):
            step(x, y)
            by_hand(two, optimizer, x, y)
    assert ["other shapes" in str(warning.message) for warning in reported] == [True]
    assert [graph.calls for graph in made] == [3]
    torch.testing.assert_close(one.state_dict(), two.state_dict(), rtol=0, atol=0)


def test_a_rate_that_is_a_number_may_not_change(made: list[Graph]) -> None:
    model = network()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, model=model, nonfinite="skip")
    step = captured(optimizer, model)
    (x, y), *_ = batches(8)
    step(x, y)
    optimizer.param_groups[0]["lr"] = 0.05
    with pytest.warns(UserWarning, match=r"lr has changed.*lr=torch.tensor"):
        step(x, y)
    assert made[0].calls == 1


def test_a_rate_that_is_a_tensor_may_change(made: list[Graph]) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1), fused=True)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    step = captured(optimizer, model)
    (x, y), *_ = batches(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            step(x, y)
            scheduler.step()
    assert made[0].calls == 3


def test_what_fails_in_the_capture_runs_eagerly_from_then_on(
    made: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Graph, "unfit", RuntimeError("operation not permitted when stream is capturing\nmore"))
    one, two = network(), network()
    step = captured(MeCAM(one.parameters(), torch.optim.SGD, lr=0.1, model=one, nonfinite="skip"), one)
    optimizer = MeCAM(two.parameters(), torch.optim.SGD, lr=0.1, model=two)
    (x, y), *_ = batches(8)
    step(x, y)
    with pytest.warns(UserWarning, match=r"cannot be captured .*stream is capturing\)"):
        step(x, y)
    step(x, y)
    assert made[0].calls == 2
    for _ in range(3):
        by_hand(two, optimizer, x, y)
    torch.testing.assert_close(one.state_dict(), two.state_dict(), rtol=0, atol=0)


@pytest.mark.usefixtures("made")
def test_after_a_failed_capture_nothing_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels did not run, and further ones fail until it ends."""

    def fail(*_: Any) -> Any:
        raise RuntimeError("stream is capturing")

    class Failing(Graph):
        def __call__(self, *inputs: Any) -> Any:
            with monkeypatch.context() as patches:
                for name in ("grad_at", "restore") if self.calls else ():
                    patches.setattr(Passes, name, fail)
                return super().__call__(*inputs)

    monkeypatch.setattr(graphs, "Captured", Failing)
    one, two = network(), network()
    step = captured(SAM(one.parameters(), torch.optim.SGD, lr=0.1, model=one, nonfinite="skip"), one)
    optimizer = SAM(two.parameters(), torch.optim.SGD, lr=0.1, model=two)
    (x, y), *_ = batches(8)
    step(x, y)
    with pytest.warns(UserWarning, match="cannot be captured"):
        step(x, y)
    for _ in range(2):
        by_hand(two, optimizer, x, y)
    torch.testing.assert_close(one.state_dict(), two.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("method", [SAM, None])
def test_a_loaded_state_is_captured_anew(made: list[Graph], method: type[SharpnessAware] | None) -> None:
    model = network()
    if method is None:
        optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), fused=True)
    else:
        optimizer = method(model.parameters(), torch.optim.Adam, model=model, nonfinite="skip", fused=True)
    step = captured(optimizer, model)
    (x, y), *_ = batches(8)
    step(x, y)
    optimizer.load_state_dict(optimizer.state_dict())
    step(x, y)
    assert [graph.calls for graph in made] == [1, 1]


def test_an_error_of_the_loss_function_is_the_users(made: list[Graph]) -> None:
    model = network()
    step = captured(torch.optim.SGD(model.parameters(), lr=0.1), model)
    with pytest.raises(ValueError, match="batch_size"):
        step(torch.zeros(4, 6).double(), torch.zeros(3, dtype=torch.long))
    (x, y), *_ = batches(4)
    step(x, y)
    assert [graph.calls for graph in made] == [1, 1]  # a capture cannot create the optimizer's state


def test_an_interrupted_capture_is_taken_again(made: list[Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    step = captured(SAM(model.parameters(), torch.optim.SGD, lr=0.1, model=model, nonfinite="skip"), model)
    (x, y), *_ = batches(8)
    step(x, y)
    with monkeypatch.context() as patches:
        patches.setattr(Graph, "unfit", KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            step(x, y)
    step(x, y)
    assert [graph.calls for graph in made] == [2, 1]
    assert step.reason is None


def test_a_skipped_first_step_is_not_what_is_captured(made: list[Graph]) -> None:
    model = network()
    step = captured(SAM(model.parameters(), torch.optim.Adam, model=model, nonfinite="skip", **ADAM), model)
    (x, y), *_ = batches(8)
    step(x * torch.nan, y)
    step(x, y)
    assert len(made) == 2


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (lambda p: SAM(p, torch.optim.SGD, lr=0.1), "nonfinite='skip'"),
        (lambda p: SAM(p, torch.optim.SGD, lr=0.1, nonfinite="skip", track=True), "track=True"),
        (lambda p: SAM(p, torch.optim.SGD, lr=0.1, nonfinite="skip", shared_noise=True), "random state"),
        (torch.optim.LBFGS, "LBFGS: it runs the closure itself"),
        (lambda p: torch.optim.AdamW(p, lr=0.1), None),
        (lambda p: SAM(p, torch.optim.SGD, lr=0.1, nonfinite="skip"), None),
    ],
)
def test_why_a_step_on_a_gpu_is_not_captured(
    optimizer: Any, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "device_of", lambda _: torch.device("cuda"))
    reason = why_not(optimizer([nn.Parameter(torch.ones(2))]))
    assert reason is None if expected is None else expected in str(reason)


def test_wrong_arguments() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="optimizer is a Sequential"):
        capture(model, loss_of(model))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="loss_fn is a Tensor"):
        capture(optimizer, torch.ones(()))  # type: ignore[arg-type]


def test_a_capture_without_memory_is_taken_again_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error, whose traceback holds tensors, is gone by then. What fails twice is an error."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: nullcontext())
    monkeypatch.setattr(graphs, "_on_own_stream", lambda function: function())
    model = network()
    optimizer = MeCAM(model.parameters(), torch.optim.SGD, lr=0.1, model=model)
    optimizer._fits = True
    seen: list[tuple[bool, bool]] = []

    def step(_: Tensor) -> Tensor:
        seen.append((optimizer.side_by_side, sys.exc_info()[1] is not None))
        if len(seen) > 1 and optimizer.side_by_side:
            raise torch.OutOfMemoryError("out of memory")
        return torch.ones(())

    captured = graphs.Captured(step, fallback=partial(graphs.take_turns, optimizer))
    for _ in range(3):
        captured(torch.ones(2))
    assert seen == [(True, False), (True, False), (False, False)]
    assert optimizer._planned
    optimizer.side_by_side, optimizer._running = True, object()  # type: ignore[assignment]
    assert not graphs.take_turns(optimizer)  # in the capture of a single pass
    optimizer._running, optimizer._fits = None, False  # where passes run in turn anyway, it does not help
    again = graphs.Captured(step, fallback=partial(graphs.take_turns, optimizer))
    again._ran = True
    with pytest.raises(torch.OutOfMemoryError):
        again(torch.ones(2))
