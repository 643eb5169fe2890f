"""Optimizers that treat domains one by one, against their formulas on flat vectors."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.optim import DGSAM, DISAM, SAM
from mecam.optim._domains import ByDomain
from tests.optim.flat import batch, closure_for, flatten, gradient, loss_at, network

DOMAINS = [batch(seed=10 + number, size=6) for number in range(3)]
LR, RHO, LAM = 0.5, 0.3, 0.8


def g(theta: Tensor, domain: int) -> Tensor:
    return gradient(theta, *DOMAINS[domain])


def n(v: Tensor) -> Tensor:
    return v / (v.norm() + 1e-12)


def mean(theta: Tensor) -> Tensor:
    return torch.stack([g(theta, domain) for domain in range(3)]).mean(0)


def disam(theta: Tensor) -> Tensor:
    """Eq. 7 of the paper by autograd: the gradient of L − λ Var, the variance over all pairs."""
    leaf = theta.clone().requires_grad_()
    losses = torch.stack([loss_at(leaf, *each) for each in DOMAINS])
    pairs = (losses[:, None] - losses[None, :]).square().sum() / (2 * 3**2)
    (ascent,) = torch.autograd.grad(losses.mean() - LAM * pairs, leaf)
    return mean(theta + RHO * n(ascent))


def as_functions(model: nn.Module, seen: list[int]) -> list[Callable[[], Tensor]]:
    def loss(number: int) -> Tensor:
        seen.append(number)
        x, y = DOMAINS[number]
        return F.cross_entropy(model(x), y)

    return [partial(loss, number) for number in range(3)]


def as_vector(model: nn.Module) -> Tensor:
    logits = model(torch.cat([x for x, _ in DOMAINS])).chunk(3)
    return torch.stack([F.cross_entropy(each, y) for each, (_, y) in zip(logits, DOMAINS, strict=True)])


def closure_of(optimizer: ByDomain, model: nn.Module, seen: list[int] | None = None) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = optimizer.over_domains(as_vector(model) if seen is None else as_functions(model, seen))
        loss.backward()
        return loss

    return closure


def weights(model: nn.Module) -> Tensor:
    return flatten(list(model.parameters()))


@pytest.mark.parametrize("functions", [False, True])
def test_disam_perturbs_along_the_loss_without_the_variance(functions: bool) -> None:
    model = network()
    optimizer = DISAM(model.parameters(), torch.optim.SGD, rho=RHO, lam=LAM, lr=LR)
    theta = weights(model)
    for _ in range(3):
        loss = optimizer.step(closure_of(optimizer, model, [] if functions else None))
        torch.testing.assert_close(loss, torch.stack([loss_at(theta, *each) for each in DOMAINS]).mean())
        theta = theta - LR * disam(theta)
        torch.testing.assert_close(weights(model), theta, rtol=0, atol=1e-12)


def test_disam_in_two_calls_is_disam_with_a_closure() -> None:
    one, two = network(), network()
    closed = DISAM(one.parameters(), torch.optim.SGD, rho=RHO, lam=LAM, lr=LR)
    called = DISAM(two.parameters(), torch.optim.SGD, rho=RHO, lam=LAM, lr=LR)
    for _ in range(3):
        closed.step(closure_of(closed, one))
        called.over_domains(as_vector(two)).backward()
        called.first_step(zero_grad=True)
        called.over_domains(as_vector(two)).backward()
        called.second_step(zero_grad=True)
    assert torch.equal(weights(one), weights(two))


def test_disam_takes_plain_steps_until_it_starts() -> None:
    model = network()
    optimizer = DISAM(model.parameters(), torch.optim.SGD, rho=RHO, lam=LAM, lr=LR, start=1)
    theta = weights(model)
    for expected in (mean, disam):
        optimizer.step(closure_of(optimizer, model))
        theta = theta - LR * expected(theta)
        torch.testing.assert_close(weights(model), theta, rtol=0, atol=1e-12)


def dgsam(theta: Tensor, order: list[int]) -> Tensor:
    away, total = theta, torch.zeros_like(theta)
    for domain in [*order, order[0]]:
        total = total + g(away, domain)
        away = away + RHO * n(g(away, domain))
    return total / 4


@pytest.mark.parametrize("track", [False, True])
def test_dgsam_climbs_domain_by_domain(track: bool) -> None:
    model, orders = network(), set[tuple[int, ...]]()
    optimizer = DGSAM(model.parameters(), torch.optim.SGD, rho=RHO, lr=LR, seed=3, track=track)
    theta = weights(model)
    for _ in range(6):
        seen: list[int] = []
        loss = optimizer.step(closure_of(optimizer, model, seen))
        assert sorted(seen[:3]) == [0, 1, 2]
        assert seen[3:] == seen[:1]  # four passes on a third of the batch each
        torch.testing.assert_close(loss, loss_at(theta, *DOMAINS[seen[0]]))
        theta = theta - LR * dgsam(theta, seen[:3])
        torch.testing.assert_close(weights(model), theta, rtol=0, atol=1e-12)
        orders.add(tuple(seen))
    assert len(orders) > 1


def test_dgsam_takes_a_vector_and_plain_steps() -> None:
    one, two = network(), network()
    vector = DGSAM(one.parameters(), torch.optim.SGD, rho=RHO, lr=LR, start=1)
    functions = DGSAM(two.parameters(), torch.optim.SGD, rho=RHO, lr=LR, start=1)
    vector.step(closure_of(vector, one))
    torch.testing.assert_close(weights(one), weights(network()) - LR * mean(weights(network())), rtol=0, atol=1e-12)
    functions.step(closure_of(functions, two, []))
    for _ in range(2):
        vector.step(closure_of(vector, one))
        functions.step(closure_of(functions, two, []))
    torch.testing.assert_close(weights(one), weights(two), rtol=0, atol=1e-12)


def test_dgsam_resumes_with_the_same_orders() -> None:
    model = network()
    optimizer = DGSAM(model.parameters(), torch.optim.Adam, rho=RHO, lr=0.1)
    for _ in range(3):
        optimizer.step(closure_of(optimizer, model, []))
    other = network()
    other.load_state_dict(model.state_dict())
    resumed = DGSAM(other.parameters(), torch.optim.Adam, rho=RHO, lr=0.1)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for _ in range(3):
        optimizer.step(closure_of(optimizer, model, []))
        resumed.step(closure_of(resumed, other, []))
    assert torch.equal(weights(model), weights(other))


@pytest.mark.parametrize("method", [DISAM, DGSAM])
def test_a_step_that_raises_leaves_the_next_one_right(method: type[ByDomain]) -> None:
    model, fresh = network(), network()
    optimizer = method(model.parameters(), torch.optim.SGD, rho=RHO, lr=LR)
    other = method(fresh.parameters(), torch.optim.SGD, rho=RHO, lr=LR)

    def failing() -> Tensor:
        closure_of(optimizer, model, [])()
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        optimizer.step(failing)
    optimizer.step(closure_of(optimizer, model, []))
    other.step(closure_of(other, fresh, []))
    assert torch.equal(weights(model), weights(fresh))


def test_a_closure_without_domains_is_warned_of_once_and_is_one_domain() -> None:
    x, y = DOMAINS[0]
    model, other = network(), network()
    optimizer, sam = (
        kind(m.parameters(), torch.optim.SGD, rho=RHO, lr=LR) for kind, m in ((DISAM, model), (SAM, other))
    )
    with pytest.warns(UserWarning, match="DISAM: the closure did not call optimizer.over_domains") as caught:
        optimizer.step(closure_for(optimizer, model, x, y))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step(closure_for(optimizer, model, x, y))
    for _ in range(2):
        sam.step(closure_for(sam, other, x, y))
    assert torch.equal(weights(model), weights(other))


@pytest.mark.parametrize("method", [DISAM, DGSAM])
def test_the_example_in_the_docstring_hands_over_the_domains(method: type[ByDomain]) -> None:
    assert "loss = optimizer.over_domains(" in (method.__doc__ or "").partition("Example:")[2]


def test_losses_that_are_not_one_per_domain_are_refused() -> None:
    for method in (DISAM, DGSAM):
        optimizer = method(network().parameters(), torch.optim.SGD, lr=LR)
        for losses, got in ((torch.zeros(2, 3), r"shape \(2, 3\)"), ([], "none")):
            with pytest.raises(
                ValueError, match=f"{method.__name__}: over_domains needs one loss per domain, got .*{got}"
            ):
                optimizer.over_domains(losses)


def test_lam_is_one_for_all_groups() -> None:
    model = network()
    groups = [{"params": model[0].parameters(), "lam": 0.2}, {"params": model[2].parameters()}]
    with pytest.raises(ValueError, match=r"DISAM: lam is .* in different groups"):
        DISAM(groups, torch.optim.SGD, lr=LR)
