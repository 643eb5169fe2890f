import math

import pytest
import torch

from mecam.analysis.convergence import constants, converge, gradient, loss

START = (2.0, -3.0, 0.5, 1.5)


def test_the_problem_has_the_smoothness_and_the_gradients_it_is_said_to_have():
    x = torch.linspace(-5, 5, 2001, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(loss(x), x, create_graph=True)
    torch.testing.assert_close(slope, gradient(x))
    (bend,) = torch.autograd.grad(slope.sum(), x)
    assert bend.abs().max().item() == pytest.approx(1)
    assert bend.min().item() < -0.1  # not convex
    assert slope.abs().max().item() == pytest.approx(0.5)


def test_the_constants_are_the_ones_written_out():
    found = constants(smoothness=2.0, largest_gradient=3.0, gap=5.0, lr=0.1, rho=0.4, alpha=0.2)
    c2 = 2 * 0.2 * 2 * 3 * 0.4 + 0.5 * 2 * 9 * 0.1
    assert found.at_theta == (pytest.approx(50 + c2), pytest.approx(c2))
    assert found.beside == (pytest.approx(2 * (50 + c2) + 2 * 0.64), pytest.approx(2 * c2 + 2 * 0.64))
    assert found.bound(100)[0] == pytest.approx((50 + c2 + c2 * math.log(100)) / 10)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_theorem_3_4_holds_along_the_way(noise):
    found = converge(START, 100, lr=0.5, rho=0.5, alpha=0.2, noise=noise)
    assert found.holds
    assert [mean.steps for mean in found.means] == [1, 2, 4, 8, 16, 32, 64, 100]
    assert found.means[-1].theta < found.means[0].theta


def test_the_steps_are_mecams_by_hand():
    found = converge(START, 3, lr=0.5, rho=0.4, alpha=0.2)
    x = torch.tensor(START, dtype=torch.float64)
    total = torch.zeros(3, dtype=torch.float64)
    for t in range(1, 4):
        g = gradient(x)
        delta = 0.4 / math.sqrt(t) * g / g.norm()
        plus, minus = gradient(x + delta), gradient(x - delta)
        total += torch.stack([g, plus, minus]).square().sum(1)
        x = x - 0.5 / math.sqrt(t) * (0.6 * g + 0.2 * plus + 0.2 * minus)
    last = found.means[-1]
    assert [last.theta, last.plus, last.minus] == pytest.approx((total / 3).tolist(), rel=1e-10)


def test_with_a_constant_radius_and_noise_the_gradients_beside_do_not_vanish():
    setting = {"lr": 0.05, "rho": 0.3, "alpha": 0.02, "noise": 0.1}
    decaying = converge([0.02], 128, **setting)  # type: ignore[arg-type]
    constant = converge([0.02], 512, **setting, decaying=False)  # type: ignore[arg-type]
    assert decaying.holds
    last = constant.means[-1]
    assert not last.holds
    assert last.plus == pytest.approx((0.3 / (1 + 0.3**2)) ** 2, rel=0.05)  # ‖∇f(δ)‖² at the minimum
    assert min(last.plus, last.minus) > last.bound_beside
    assert last.theta <= last.bound


def test_no_steps_are_refused():
    with pytest.raises(ValueError, match="steps=0"):
        converge(START, 0)
