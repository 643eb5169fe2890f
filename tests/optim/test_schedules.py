"""Schedules, against their formulas and torch's own."""

import math
import pickle
from typing import Any

import pytest
import torch

from mecam.optim import (
    GSAM,
    SAM,
    MeCAM,
    RhoSchedule,
    constant,
    cosine,
    inverse_sqrt,
    linear,
    proportional_to_lr,
    warmup,
)
from mecam.optim.schedules import SCHEDULES, by_name
from tests.optim.flat import batch, closure_for, network

X, Y = batch()


def radii(shape: object, steps: int = 6, rho: float | torch.Tensor = 0.2) -> list[float]:
    optimizer = SAM(network().parameters(), torch.optim.SGD, lr=0.1, rho=rho)
    schedule = RhoSchedule(optimizer, shape)  # type: ignore[arg-type]
    seen = []
    for _ in range(steps):
        seen.append(float(optimizer.param_groups[0]["rho"]))
        schedule.step()
    return seen


def test_shapes() -> None:
    assert radii(constant()) == [0.2] * 6
    assert radii(linear(4, final=0.5)) == pytest.approx([0.2, 0.175, 0.15, 0.125, 0.1, 0.1])
    assert radii(cosine(4)) == pytest.approx([0.1 * (1 + math.cos(math.pi * min(t, 4) / 4)) for t in range(6)])
    assert radii(inverse_sqrt()) == pytest.approx([0.2 / math.sqrt(t) for t in range(1, 7)])


def learning_rates(scheduler: Any, steps: int) -> list[float]:
    """Of torch's scheduler, by a function of an optimizer at a learning rate of 1."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    made, seen = scheduler(optimizer), []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        made.step()
    return seen


@pytest.mark.parametrize("rise", [0, 1, 4])
@pytest.mark.parametrize("name", ["constant", "cosine", "linear", "inverse_sqrt"])
def test_named_schedules_are_torch_s(name: str, rise: int) -> None:
    lr_scheduler, updates = torch.optim.lr_scheduler, 12

    def torchs(optimizer: Any) -> Any:
        rest = updates - rise
        after = {
            "constant": lambda: lr_scheduler.ConstantLR(optimizer, 1.0),
            "cosine": lambda: lr_scheduler.CosineAnnealingLR(optimizer, rest),
            "linear": lambda: lr_scheduler.LinearLR(optimizer, 1.0, 0.0, rest),
            "inverse_sqrt": lambda: lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) ** -0.5),
        }
        if rise < 2:  # a warm-up of one step is at its top at once, where the schedule starts
            return (
                after[name]()
                if rise == 0
                else lr_scheduler.SequentialLR(optimizer, [lr_scheduler.ConstantLR(optimizer, 1.0), after[name]()], [1])
            )
        rising = lr_scheduler.LinearLR(optimizer, 1 / rise, 1.0, rise - 1)
        return lr_scheduler.SequentialLR(optimizer, [rising, after[name]()], [rise])

    factor = by_name(name, updates=updates, warmup_steps=rise)
    assert [factor(step) for step in range(updates)] == pytest.approx(learning_rates(torchs, updates), rel=1e-9)


def test_warm_up() -> None:
    factor = warmup(4, linear(2))
    assert [factor(step) for step in range(8)] == pytest.approx([0.25, 0.5, 0.75, 1, 1, 0.5, 0, 0])
    assert radii(warmup(2, inverse_sqrt())) == pytest.approx([0.1, 0.2, *(0.2 / math.sqrt(t) for t in range(1, 5))])
    assert warmup(0, cosine(3))(1) == cosine(3)(1)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_last_update_of_a_run_moves(name: str) -> None:
    assert by_name(name, updates=5000, warmup_steps=4999)(4999) == 1
    assert 0 < by_name(name, updates=5000)(4999) <= 1


def test_tied_to_the_learning_rate_as_in_gsam() -> None:
    model = network()
    optimizer = GSAM(model.parameters(), torch.optim.SGD, lr=0.1)
    lr = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5, eta_min=0.01)
    rho = RhoSchedule(optimizer, proportional_to_lr(rho_max=0.5, lr_max=0.1, rho_min=0.05, lr_min=0.01))
    for _ in range(5):
        group = optimizer.param_groups[0]
        assert group["rho"] == pytest.approx(0.05 + 0.45 * (group["lr"] - 0.01) / 0.09)
        optimizer.step(closure_for(optimizer, model, X, Y))
        lr.step()
        rho.step()
    assert optimizer.param_groups[0]["rho"] == pytest.approx(0.05)


@pytest.mark.parametrize("lr", [0.0, torch.tensor(0.0)])
def test_a_learning_rate_below_its_least_leaves_the_least_radius(lr: float | torch.Tensor) -> None:
    """As in a warm-up from 0: a negative radius would lead downhill."""
    optimizer = GSAM(network().parameters(), torch.optim.SGD, lr=0.1)
    optimizer.param_groups[0]["lr"] = lr
    RhoSchedule(optimizer, proportional_to_lr(rho_max=0.5, lr_max=0.1, rho_min=0.05, lr_min=0.01))
    assert optimizer.param_groups[0]["rho"] == pytest.approx(0.05)


@pytest.mark.parametrize(
    "shape", [constant(), linear(4), cosine(4), inverse_sqrt(), warmup(3, linear(4)), proportional_to_lr(0.5, 0.1)]
)
def test_a_schedule_can_be_pickled(shape: Any) -> None:
    schedule = RhoSchedule(SAM(network().parameters(), torch.optim.SGD, lr=0.1), shape)
    again = pickle.loads(pickle.dumps(schedule))
    for each in (schedule, again):
        each.step()
    assert again.optimizer.param_groups[0]["rho"] == schedule.optimizer.param_groups[0]["rho"]


def test_groups_keep_their_own_radius() -> None:
    model = network()
    groups = [{"params": model[0].parameters(), "rho": 0.4}, {"params": model[2].parameters()}]
    optimizer = MeCAM(groups, torch.optim.SGD, lr=0.1, rho=0.2)
    schedule = RhoSchedule(optimizer, linear(2, final=0.5))
    schedule.step()
    schedule.step()
    assert [group["rho"] for group in optimizer.param_groups] == pytest.approx([0.2, 0.1])


def test_a_tensor_is_changed_in_place() -> None:
    rho = torch.tensor(0.2)
    radii(linear(4), rho=rho)
    assert rho.item() == 0.0


def test_resume() -> None:
    def fresh() -> tuple[SAM, RhoSchedule]:
        optimizer = SAM(network().parameters(), torch.optim.SGD, lr=0.1, rho=0.2)
        return optimizer, RhoSchedule(optimizer, cosine(10))

    optimizer, schedule = fresh()
    for _ in range(4):
        schedule.step()
    other, resumed = fresh()
    other.load_state_dict(optimizer.state_dict())
    resumed.load_state_dict(schedule.state_dict())
    schedule.step()
    resumed.step()
    assert other.param_groups[0]["rho"] == optimizer.param_groups[0]["rho"]


def test_a_resumed_optimizer_before_the_schedule_is_made() -> None:
    """rho in a checkpoint is the scheduled one; the schedule's own state says what it started from."""
    optimizer = SAM(network().parameters(), torch.optim.SGD, lr=0.1, rho=0.2)
    schedule = RhoSchedule(optimizer, linear(4))
    schedule.step()
    other = SAM(network().parameters(), torch.optim.SGD, lr=0.1, rho=0.2)
    other.load_state_dict(optimizer.state_dict())
    resumed = RhoSchedule(other, linear(4))
    resumed.load_state_dict(schedule.state_dict())
    assert other.param_groups[0]["rho"] == pytest.approx(0.15)


def test_refusals() -> None:
    with pytest.raises(TypeError, match="SGD has no rho"):
        RhoSchedule(torch.optim.SGD(network().parameters()), constant())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="steps=0"):
        linear(0)
    with pytest.raises(ValueError, match="a warm-up takes at least 0 steps"):
        warmup(-1, constant())
    with pytest.raises(ValueError, match="no schedule 'cosin'; did you mean cosine"):
        by_name("cosin", updates=3)
    with pytest.raises(ValueError, match=r"warmup_steps=3 is not allowed; it must be in \[0, 3\)"):
        by_name("cosine", updates=3, warmup_steps=3)
    with pytest.raises(ValueError, match="lr_max"):
        proportional_to_lr(0.1, 0.01, lr_min=0.1)
    schedule = RhoSchedule(SAM(network().parameters(), torch.optim.SGD, lr=0.1), linear(1, final=-1))
    with pytest.raises(ValueError, match=r"SAM, by its schedule: rho=-0.05 is not allowed"):
        schedule.step()
