"""start and every: which steps take the method's passes, and that the others are the base optimizer's."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mecam.optim import FSAM, GAM, SAM, LookSAM, MeCAM, SharpnessAware, create
from tests.optim.flat import Tilt, batch, closure_for, flatten, gradient, network

X, Y = batch()
LR = 0.5


def build(**settings: Any) -> tuple[nn.Sequential, MeCAM]:
    model = network()
    values = {"rho": 0.3, "alpha": 0.3, "beta": 0.2, **settings}
    return model, MeCAM(model.parameters(), torch.optim.SGD, lr=LR, virtual_domain=Tilt(model, 0.4), **values)


def counted(optimizer: SharpnessAware, model: nn.Module, passes: list[int]) -> Callable[[], Tensor]:
    """The closure of a step, whose number of passes is the last entry of `passes`."""
    passes.append(0)

    def closure() -> Tensor:
        passes[-1] += 1
        return closure_for(optimizer, model, X, Y)()

    return closure


def mecam(theta: Tensor) -> Tensor:
    """MeCAM's gradient at flat weights."""
    g = gradient(theta, X, Y)
    d = 0.3 * g / (g.norm() + 1e-12)
    return 0.5 * g + 0.3 * gradient(theta + d, X, Y) + 0.2 * gradient(theta - d, X, Y, tilt=0.4)


@pytest.mark.parametrize(
    ("settings", "due"),
    [
        ({"every": 3}, [0, 3, 6, 9]),
        ({"every": 4, "start": 2}, [2, 6]),
        ({"start": 7}, [7, 8, 9]),
        ({"start": 20}, []),
        ({}, list(range(10))),
    ],
)
def test_steps_that_are_due_are_mecams_and_the_others_the_base_optimizers(
    settings: dict[str, Any], due: list[int]
) -> None:
    model, optimizer = build(**settings)
    theta, passes = flatten(list(model.parameters())), list[int]()
    for step in range(10):
        optimizer.step(counted(optimizer, model, passes))
        theta = theta - LR * (mecam(theta) if step in due else gradient(theta, X, Y))
        torch.testing.assert_close(flatten(list(model.parameters())), theta, rtol=0, atol=1e-12)
    assert passes == [3 if step in due else 1 for step in range(10)]


@pytest.mark.parametrize("method", [SAM, GAM, FSAM, LookSAM])
def test_a_late_start_is_the_base_optimizer_and_then_the_method(method: type[SharpnessAware]) -> None:
    model, other = network(), network()
    late = method(model.parameters(), torch.optim.SGD, lr=LR, start=3)
    plain = torch.optim.SGD(other.parameters(), lr=LR)
    for _ in range(3):
        late.step(closure_for(late, model, X, Y))
        plain.step(closure_for(plain, other, X, Y))
    assert torch.equal(flatten(list(model.parameters())), flatten(list(other.parameters())))
    whole = method(other.parameters(), torch.optim.SGD, lr=LR)
    for _ in range(3):
        late.step(closure_for(late, model, X, Y))
        whole.step(closure_for(whole, other, X, Y))
    assert torch.equal(flatten(list(model.parameters())), flatten(list(other.parameters())))


def test_a_resumed_optimizer_continues_the_count() -> None:
    model, optimizer = build(every=4, start=1)
    for _ in range(3):
        optimizer.step(closure_for(optimizer, model, X, Y))
    other, resumed = build(every=4, start=1)
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    ours, theirs = list[int](), list[int]()
    for _ in range(6):
        optimizer.step(counted(optimizer, model, ours))
        resumed.step(counted(resumed, other, theirs))
    assert ours == theirs == [1, 1, 3, 1, 1, 1]
    assert torch.equal(flatten(list(model.parameters())), flatten(list(other.parameters())))


def test_plan_tells_what_the_step_will_do() -> None:
    model, optimizer = build(every=3)
    passes, planned = list[int](), list[object]()
    for _ in range(7):
        planned.append(optimizer.plan())
        optimizer.step(counted(optimizer, model, passes))
    assert planned == [number == 3 for number in passes] == [True, False, False, True, False, False, True]


def test_plans_continue_where_the_device_counts_the_steps() -> None:
    """As replayed graphs leave it: `step` does not run, and `taken` is a tensor that the host does not read."""
    model, optimizer = build(every=3)
    optimizer.step(closure_for(optimizer, model, X, Y))
    for group in optimizer.param_groups:
        group["taken"] = torch.tensor(-7)
    assert [optimizer.plan() for _ in range(6)] == [False, False, True, False, False, True]


def test_a_state_without_the_hosts_count_continues_from_the_devices() -> None:
    _, optimizer = build(every=3)
    for group in optimizer.param_groups:  # as from a checkpoint of an optimizer without `every`
        group["taken"] = torch.tensor(4)
    assert [optimizer.plan() for _ in range(3)] == [False, False, True]


def test_thinmecam_is_an_alias() -> None:
    made = create("thinmecam", network().parameters(), lr=LR)
    assert (type(made), made.every, made.start) == (MeCAM, 3, 0)
    late = create("thinmecam", network().parameters(), lr=LR, every=1, start=650)
    assert (late.every, late.start) == (1, 650)


def test_bad_values_and_two_calls_are_refused() -> None:
    with pytest.raises(ValueError, match=r"MeCAM: every=0 is not allowed; it must be a whole number in \[1, inf\)"):
        build(every=0)
    with pytest.raises(ValueError, match=r"MeCAM: start=1\.5 is not allowed"):
        build(start=1.5)
    model = network()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=LR, every=2)
    closure_for(optimizer, model, X, Y)()
    with pytest.raises(RuntimeError, match=r"first_step\(\) does not support .* start, every"):
        optimizer.first_step()
