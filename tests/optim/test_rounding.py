"""Stochastic rounding: perturbations of half-precision weights that are exact on average."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mecam.optim import MSAM, SAM, MeCAM, SharpnessAware
from mecam.optim._rounding import round_randomly

HALVES = [torch.bfloat16, torch.float16]
DRAWS = 100_000


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 5)).to(dtype)


class Perturbed:
    """A closure that keeps the weights of every pass, and may fail in one."""

    def __init__(self, model: nn.Module, fail_in: int = -1) -> None:
        self.model, self.fail_in, self.weights = model, fail_in, list[Tensor]()
        like = next(model.parameters())
        self.inputs = torch.randn(16, 64, generator=generator()).to(like.dtype)

    def __call__(self) -> Tensor:
        self.model.zero_grad()
        self.weights.append(flat(self.model))
        if len(self.weights) - 1 == self.fail_in:
            raise ArithmeticError
        loss = self.model(self.inputs).float().square().mean()
        loss.backward()
        return loss


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().double().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("value", [0.3, -1.0001, 1.9999, 3e-5, -2e-6, 1e-8, 60000.3])
def test_the_expectation_is_exact(value: float, dtype: torch.dtype) -> None:
    exact = torch.full((DRAWS,), value)
    rounded = round_randomly(exact, dtype, generator())
    assert torch.equal(rounded.to(dtype).float(), rounded)
    low, high = rounded.min().item(), rounded.max().item()
    assert low <= exact[0] <= high
    assert set(rounded.unique().tolist()) == {low, high}
    spread = (high - low) / 2 / math.sqrt(DRAWS)
    assert rounded.double().mean().item() == pytest.approx(exact[0].item(), abs=5 * spread)


@pytest.mark.parametrize("dtype", HALVES)
def test_numbers_that_need_no_rounding_stay(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    numbers = [0.0, 1.0, -1.0, limits.eps, limits.max, limits.min, limits.smallest_normal, limits.smallest_normal / 4]
    exact = torch.tensor([*numbers, math.inf, -math.inf]).repeat(1000)
    assert torch.equal(round_randomly(exact, dtype, generator()), exact)
    nan = torch.tensor([0x7FFFFFFF, 0x7FC00000, -1], dtype=torch.int32).view(torch.float32).repeat(1000)
    assert round_randomly(nan, dtype, generator()).isnan().all()


@pytest.mark.parametrize("dtype", HALVES)
def test_the_perturbation_acts_in_full(dtype: torch.dtype, recwarn: pytest.WarningsRecorder) -> None:
    model, rho = network(dtype), 0.02
    optimizer = SAM(model.parameters(), torch.optim.SGD, rho, lr=0.0, stochastic_rounding=True)
    assert not recwarn
    closure = Perturbed(model)
    for _ in range(200):
        optimizer.step(closure)
    theta, moved = closure.weights[0], torch.stack(closure.weights[1::2]) - closure.weights[0]
    assert torch.equal(flat(model), theta)
    gradient = torch.cat([p.grad.double().reshape(-1) for p in model.parameters() if p.grad is not None])
    assert moved.mean(0).norm() == pytest.approx(rho, rel=0.1)
    assert torch.cosine_similarity(moved.mean(0), gradient, 0) > 0.95
    assert not torch.equal(moved[0], moved[1])


@pytest.mark.parametrize("method", [SAM, MSAM])
def test_a_perturbation_that_is_rounded_away_is_warned_of(method: type[SharpnessAware]) -> None:
    with pytest.warns(UserWarning, match=r"parameters are torch\.bfloat16.*stochastic_rounding=True"):
        method(network(torch.bfloat16).parameters(), torch.optim.SGD, lr=0.1)


def test_ranks_copies_and_resumed_runs_agree() -> None:
    """The noise depends on the step and the pass alone, and torch's own random numbers are not touched."""
    options: dict[str, Any] = {"lr": 0.1, "stochastic_rounding": True}
    model = network(torch.bfloat16)
    optimizer = MeCAM(model.parameters(), torch.optim.SGD, 0.02, **options)
    for _ in range(2):
        optimizer.step(Perturbed(model))
    other = copy.deepcopy(model)
    resumed = MeCAM(other.parameters(), torch.optim.SGD, 0.02, **options)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    ours, theirs = Perturbed(model), Perturbed(other)
    state = torch.get_rng_state()
    optimizer.step(ours)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(5)
    resumed.step(theirs)
    assert all(map(torch.equal, ours.weights, theirs.weights))
    theta, plus, minus = ours.weights
    assert not torch.equal(plus - theta, theta - minus)


def test_the_weights_are_restored_after_an_error() -> None:
    model = network(torch.bfloat16)
    optimizer = MeCAM(model.parameters(), torch.optim.SGD, lr=0.1, stochastic_rounding=True)
    before = flat(model)
    with pytest.raises(ArithmeticError):
        optimizer.step(Perturbed(model, fail_in=2))
    assert torch.equal(flat(model), before)


def test_two_calls_are_one_step() -> None:
    model = network(torch.bfloat16)
    other = copy.deepcopy(model)
    a, b = (SAM(m.parameters(), torch.optim.SGD, lr=0.1, stochastic_rounding=True) for m in (model, other))
    closure = Perturbed(other)
    for _ in range(2):
        a.step(Perturbed(model))
        closure()
        b.first_step()
        closure()
        b.second_step()
    assert torch.equal(flat(model), flat(other))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_full_precision_is_not_rounded(dtype: torch.dtype) -> None:
    model = network(dtype)
    other = copy.deepcopy(model)
    for m, rounding in ((model, False), (other, True)):
        MeCAM(m.parameters(), torch.optim.SGD, lr=0.1, stochastic_rounding=rounding).step(Perturbed(m))
    assert torch.equal(flat(model), flat(other))


def test_it_is_not_for_graphs() -> None:
    optimizer = SAM([torch.zeros(2, requires_grad=True)], torch.optim.Adam, stochastic_rounding=True)
    assert optimizer.capturable == "nothing"
