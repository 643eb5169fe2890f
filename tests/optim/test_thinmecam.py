"""MeCAM in some steps only: which steps those are, and that nothing else changes."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mecam.optim import MeCAM, ThinMeCAM
from tests.optim.flat import Tilt, batch, closure_for, flatten, gradient, loss_at, network

X, Y = batch()
LR = 0.5


def build(**settings: Any) -> tuple[nn.Sequential, ThinMeCAM]:
    model = network()
    values = {"rho": 0.3, "alpha": 0.3, "beta": 0.2, **settings}
    return model, ThinMeCAM(model.parameters(), torch.optim.SGD, lr=LR, virtual_domain=Tilt(model, 0.4), **values)


def counted(optimizer: ThinMeCAM, model: nn.Module, passes: list[int]) -> Callable[[], Tensor]:
    """The closure of a step, whose number of passes is the last entry of `passes`."""
    passes.append(0)

    def closure() -> Tensor:
        passes[-1] += 1
        return closure_for(optimizer, model, X, Y)()

    return closure


def look(theta: Tensor) -> tuple[Tensor, float]:
    """MeCAM's gradient at flat weights, and what its two gaps are worth."""
    g, f = gradient(theta, X, Y), loss_at(theta, X, Y)
    d = 0.3 * g / (g.norm() + 1e-12)
    combined = 0.5 * g + 0.3 * gradient(theta + d, X, Y) + 0.2 * gradient(theta - d, X, Y, tilt=0.4)
    gaps = 0.3 * (loss_at(theta + d, X, Y) - f) + 0.2 * (loss_at(theta - d, X, Y, tilt=0.4) - f)
    return combined, (gaps / f).item()


@pytest.mark.parametrize(
    ("settings", "looks"),
    [
        ({"every": 3}, [0, 3, 6, 9]),
        ({"every": 4, "start": 2}, [2, 6]),
        ({"every": 1, "start": 7}, [7, 8, 9]),
        ({"every": 5, "gate": 1e3}, [0, 5]),
        ({"every": 5, "start": 1, "gate": 1e-9}, list(range(1, 10))),
    ],
)
def test_it_is_mecam_in_its_looks_and_the_base_optimizer_between(settings: dict[str, Any], looks: list[int]) -> None:
    model, optimizer = build(**settings)
    theta, passes = flatten(list(model.parameters())), list[int]()
    for step in range(10):
        optimizer.step(counted(optimizer, model, passes))
        theta = theta - LR * (look(theta)[0] if step in looks else gradient(theta, X, Y))
        torch.testing.assert_close(flatten(list(model.parameters())), theta, rtol=0, atol=1e-12)
    assert [step for step, number in enumerate(passes) if number == 3] == looks
    assert set(passes) == {1, 3}


def test_every_step_a_look_is_mecam_bit_for_bit() -> None:
    model, thin = build(every=1)
    other = network()
    full = MeCAM(
        other.parameters(), torch.optim.SGD, lr=LR, rho=0.3, alpha=0.3, beta=0.2, virtual_domain=Tilt(other, 0.4)
    )
    for _ in range(4):
        thin.step(closure_for(thin, model, X, Y))
        full.step(closure_for(full, other, X, Y))
    assert torch.equal(flatten(list(model.parameters())), flatten(list(other.parameters())))


GATE = 0.012  # the gap is above it at first, then below, and in the end below its negative


def gated(steps: int) -> tuple[list[bool], list[float]]:
    """Looks, and the running mean of the gap after each step, by the definition."""
    theta, mean = flatten(list(network().parameters())), None
    looks, means = [], []
    for step in range(steps):
        looks.append(step % 4 == 0 or (mean is not None and abs(mean) > GATE))
        combined, gap = look(theta)
        if looks[-1]:
            mean = gap if mean is None else 0.9 * mean + 0.1 * gap
        theta = theta - LR * (combined if looks[-1] else gradient(theta, X, Y))
        assert mean is not None
        means.append(mean)
    return looks, means


def test_the_gate_opens_where_the_gaps_are_worth_more_than_it() -> None:
    looks, means = gated(60)
    assert all(looks[:9] + looks[48:])  # open, shut, open again
    assert sum(looks[9:44]) == 8
    model, optimizer = build(every=4, gate=GATE)
    passes = list[int]()
    for mean in means:
        optimizer.step(counted(optimizer, model, passes))
        assert optimizer.noted("gap").item() == pytest.approx(mean, rel=1e-10)
    assert [number == 3 for number in passes] == looks


@pytest.mark.parametrize("at", [3, 18, 47])
def test_a_state_goes_on_with_the_same_looks(at: int) -> None:
    model, optimizer = build(every=4, gate=GATE)
    for _ in range(at):
        optimizer.step(closure_for(optimizer, model, X, Y))
    other, resumed = build(every=4, gate=GATE)
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    ours, theirs = list[int](), list[int]()
    for _ in range(6):
        optimizer.step(counted(optimizer, model, ours))
        resumed.step(counted(resumed, other, theirs))
    assert ours == theirs
    assert torch.equal(flatten(list(model.parameters())), flatten(list(other.parameters())))


def test_who_asks_before_each_step_gets_the_same_steps() -> None:
    looks, _ = gated(60)
    model, optimizer = build(every=4, gate=GATE)
    passes, planned = list[int](), list[bool]()
    for _ in looks:
        planned.append(optimizer.plan())
        optimizer.step(counted(optimizer, model, passes))
    assert planned == [number == 3 for number in passes] == looks


def test_plans_go_on_where_the_device_counts_the_steps() -> None:
    """As replayed graphs leave it: `step` does not run, and `taken` is a tensor that the host does not read."""
    model, optimizer = build(every=3)
    optimizer.step(closure_for(optimizer, model, X, Y))
    for group in optimizer.param_groups:
        group["taken"] = torch.tensor(-7)
    assert [optimizer.plan() for _ in range(6)] == [False, False, True, False, False, True]


def test_a_gap_of_a_step_that_is_not_taken_does_not_count() -> None:
    model = network()
    optimizer = ThinMeCAM(model.parameters(), torch.optim.SGD, lr=LR, gate=0.1, nonfinite="skip")

    def overflowing() -> Tensor:
        loss = closure_for(optimizer, model, X, Y)()
        next(model.parameters()).grad.fill_(torch.inf)  # type: ignore[union-attr]
        return loss

    optimizer.step(overflowing)
    assert optimizer.noted("gap").item() == torch.inf
    assert optimizer.plan()  # the look is still due


def test_bad_weights_are_refused_under_its_own_name() -> None:
    with pytest.raises(ValueError, match=r"ThinMeCAM: alpha=0.7 and beta=0.4 add up to 1.1"):
        build(alpha=0.7, beta=0.4)
    with pytest.raises(ValueError, match=r"ThinMeCAM: every=0 is not allowed"):
        build(every=0)
