"""The curvature penalty at its true scale, against derivatives of third order and a recursion written out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mecam.optim import CurveMeCAM, MeCAM
from tests.optim.flat import Tilt, batch, closure_for, flatten, gradient, network

X, Y = batch()
LR = 0.1


def on(function: Callable[[Tensor], Tensor], **settings: Any) -> tuple[Tensor, Tensor]:
    """Where a step on this function is taken, and the gradient it hands to the base optimizer."""
    torch.manual_seed(0)
    theta = nn.Parameter(torch.randn(6, dtype=torch.float64))
    optimizer = CurveMeCAM([theta], torch.optim.SGD, lr=LR, **settings)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = function(theta)
        loss.backward()
        return loss

    at = theta.detach().clone()
    optimizer.step(closure)
    assert theta.grad is not None
    return at, theta.grad


def third(function: Callable[[Tensor], Tensor], at: Tensor, u: Tensor) -> Tensor:
    """The gradient of uᵀHu with u held constant, by autograd."""

    def along(x: Tensor) -> Tensor:
        return u @ torch.func.hessian(function)(x) @ u

    return torch.func.grad(along)(at)


ROOT = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def quadratic(x: Tensor) -> Tensor:
    return 0.5 * x @ (ROOT @ ROOT.T) @ x + ROOT[0] @ x


def cubic(x: Tensor) -> Tensor:
    return quadratic(x) + ((ROOT @ x) ** 3).sum() / 6


def bent(x: Tensor) -> Tensor:
    return quadratic(x) + torch.cos(ROOT @ x).sum()


@pytest.mark.parametrize("rho", [0.01, 0.3])
def test_a_quadratic_has_no_curvature_to_lose(rho: float) -> None:
    at, found = on(quadratic, rho=rho, alpha=0.7)
    torch.testing.assert_close(found, torch.func.grad(quadratic)(at), rtol=0, atol=1e-9)


@pytest.mark.parametrize("rho", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("normalised", [False, True])
def test_on_a_cubic_it_is_exact_whatever_the_length(rho: float, normalised: bool) -> None:
    at, found = on(cubic, rho=rho, alpha=0.7, normalised=normalised)
    g = torch.func.grad(cubic)(at)
    weight = 0.7 / (g @ g + 1) if normalised else 0.7
    torch.testing.assert_close(found, g + weight * third(cubic, at, g / g.norm()), rtol=0, atol=1e-8)


def test_elsewhere_the_error_falls_with_the_square_of_the_length() -> None:
    errors = []
    for rho in (0.1, 0.05, 0.025):
        at, found = on(bent, rho=rho, alpha=0.7)
        g = torch.func.grad(bent)(at)
        errors.append((found - g - 0.7 * third(bent, at, g / g.norm())).norm().item())
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.05)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize("settings", [{"alpha": 0.2, "scaled": False}, {"alpha": 0.2 * 0.3**2}])
def test_mecam_with_equal_weights_is_a_small_penalty(settings: dict[str, Any]) -> None:
    a, b = network(), network()
    one = CurveMeCAM(a.parameters(), torch.optim.SGD, lr=LR, rho=0.3, virtual_domain=Tilt(a, 0.4), **settings)
    two = MeCAM(b.parameters(), torch.optim.SGD, lr=LR, rho=0.3, alpha=0.2, beta=0.2, virtual_domain=Tilt(b, 0.4))
    for _ in range(3):
        one.step(closure_for(one, a, X, Y))
        two.step(closure_for(two, b, X, Y))
        torch.testing.assert_close(flatten(list(a.parameters())), flatten(list(b.parameters())), rtol=0, atol=1e-12)


def test_the_length_follows_the_curvature() -> None:
    """Against the rule on flat vectors."""
    model = network()
    optimizer = CurveMeCAM(
        model.parameters(), torch.optim.SGD, lr=LR, rho=0.3, alpha=0.02, share=0.5, virtual_domain=Tilt(model, 0.4)
    )
    theta, mean, lengths = flatten(list(model.parameters())), None, []
    for _ in range(6):
        g = gradient(theta, X, Y)
        u = g / g.norm()
        h = 0.3 if mean is None else min(max(0.5 * g.norm().item() / mean, 0.03), 3.0)
        lengths.append(h)
        plus, minus = gradient(theta + h * u, X, Y), gradient(theta - h * u, X, Y, tilt=0.4)
        seen = (plus - g).norm().item() / h
        mean = seen if mean is None else 0.9 * mean + 0.1 * seen
        optimizer.step(closure_for(optimizer, model, X, Y))
        theta = theta - LR * (g + 0.02 / h**2 * (plus + minus - 2 * g))
        torch.testing.assert_close(flatten(list(model.parameters())), theta, rtol=0, atol=1e-11)
        assert optimizer.noted("curvature").item() == pytest.approx(mean, rel=1e-9)
    assert lengths[0] == 0.3
    assert len({round(h, 6) for h in lengths}) == 6


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_in_single_precision_the_share_of_its_balance_serves_well(seed: int) -> None:
    """Far shorter the second difference is rounding, far longer it is another function."""
    rows = torch.randn(200, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(9)) / 30**0.5

    def waves(x: Tensor) -> Tensor:
        return torch.cos(rows.to(x) @ x + torch.arange(200, dtype=x.dtype)).mean()

    at = torch.randn(30, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    g = torch.func.grad(waves)(at)
    u = g / g.norm()
    scale = g.norm() / (torch.func.hessian(waves)(at) @ u).norm()
    exact, errors = third(waves, at, u), {}
    for share in (0.001, 0.05, 1.0):
        theta = nn.Parameter(at.float())
        optimizer = CurveMeCAM([theta], torch.optim.SGD, lr=0.0, rho=share * scale.item(), alpha=1e4)

        def closure(theta: nn.Parameter = theta, optimizer: CurveMeCAM = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = waves(theta)
            loss.backward()
            return loss

        optimizer.step(closure)
        assert theta.grad is not None
        errors[share] = ((theta.grad.double() - g) / 1e4 - exact).norm() / exact.norm()
    assert errors[0.05] < 0.01
    assert errors[0.001] > 0.3
    assert errors[1.0] > 0.1


@pytest.mark.parametrize(("scale", "length"), [(1e-6, 3.0), (1e6, 0.03)])
def test_a_length_stays_within_a_factor_of_rho(scale: float, length: float) -> None:
    theta = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = CurveMeCAM([theta], torch.optim.SGD, lr=1e-12, rho=0.3, share=0.5)
    seen: list[Tensor] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        seen.append(theta.detach().clone())
        loss = theta.sum() + 0.5 * scale * (theta - 1).square().sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    assert (seen[1] - seen[0]).norm().item() == pytest.approx(0.3)
    assert (seen[4] - seen[3]).norm().item() == pytest.approx(length)


def test_a_gradient_of_zero_stays_one() -> None:
    theta = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = CurveMeCAM([theta], torch.optim.SGD, lr=0.1, share=0.5)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = theta.square().sum()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    assert torch.equal(theta.detach(), torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize("rho", [0.0, 1e-200])
def test_a_length_over_which_nothing_is_measured_is_refused(rho: float) -> None:
    """The square of the second is 0, by which its penalty would be divided."""
    with pytest.raises(ValueError, match=r"CurveMeCAM: rho=.* it must be a number in \[1e-06, inf\)"):
        CurveMeCAM(network().parameters(), torch.optim.SGD, lr=LR, rho=rho)
