import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from mecam.analysis.objective import Loss, Objective
from mecam.analysis.theory import (
    at_minimum,
    best_rho,
    beta_star,
    beta_stars,
    central_difference,
    fourth_derivative,
)

Matrix = torch.Tensor


def least_squares(*, at: Matrix | None = None, loss: Loss = mse_loss) -> tuple[Objective, Matrix]:
    """A linear fit at its minimum, or `at` away from it, and its Hessian 2 XᵀX/n."""
    generator = torch.Generator().manual_seed(0)
    X, y = (torch.randn(n, generator=generator, dtype=torch.float64) for n in ((40, 6), (40, 1)))
    model = nn.Linear(6, 1, bias=False).double()
    best = torch.linalg.lstsq(X, y).solution.T
    with torch.no_grad():
        model.weight.copy_(best if at is None else best + at)
    return Objective(model, loss, [(X[:15], y[:15]), (X[15:], y[15:])]), 2 * X.T @ X / 40


def smooth_network() -> Objective:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    return Objective(model, cross_entropy, [(torch.randn(12, 3).double(), torch.randint(0, 3, (12,)))])


def test_lemma_3_1_at_a_convex_minimum():
    objective, H = least_squares()
    found = at_minimum(objective)
    assert found.applies
    assert found.curvature == pytest.approx(torch.linalg.eigvalsh(H)[-1].item(), abs=1e-6)
    assert found.difference == pytest.approx(0, abs=1e-6)


def test_away_from_a_minimum_the_gradient_lowers_c_and_is_what_recovers_the_eigenvalue():
    shift = torch.full((1, 6), 0.7, dtype=torch.float64)
    objective, H = least_squares(at=shift)
    found = at_minimum(objective)
    size = (H @ shift.T).norm().item()  # ∇f = H (θ − θ*)
    largest = torch.linalg.eigvalsh(H)[-1].item()
    assert not found.applies
    assert found.gradient_norm == pytest.approx(size)
    assert found.curvature == pytest.approx(largest / (1 + size**2))
    assert found.recovered == pytest.approx(largest)
    assert found.magnitude == pytest.approx(largest)


def test_at_a_stationary_point_that_bends_downwards_more_than_upwards_the_lemma_fails():
    # f = a² − 3 b²
    model = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        model.weight.zero_()

    def saddle(out: torch.Tensor, sign: torch.Tensor) -> torch.Tensor:
        return (sign * out[:, 0] ** 2).mean()

    batch = (torch.eye(2, dtype=torch.float64), torch.tensor([2.0, -6.0], dtype=torch.float64))
    found = at_minimum(Objective(model, saddle, [batch]))
    assert (found.largest, found.smallest) == (pytest.approx(2), pytest.approx(-6))
    assert not found.applies
    assert found.curvature == pytest.approx(6)
    assert found.difference == pytest.approx(-4)


def test_c_does_not_see_the_height_of_the_loss_and_scales_with_it_at_a_minimum_only():
    shift = torch.full((1, 6), 0.7, dtype=torch.float64)

    def raised(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return mse_loss(out, y) + 1000

    def tripled(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 3 * mse_loss(out, y)

    away = at_minimum(least_squares(at=shift)[0])
    assert at_minimum(least_squares(at=shift, loss=raised)[0]).curvature == pytest.approx(away.curvature)
    there = at_minimum(least_squares()[0])
    assert at_minimum(least_squares(loss=tripled)[0]).curvature == pytest.approx(3 * there.curvature)
    scaled = at_minimum(least_squares(at=shift, loss=tripled)[0]).curvature
    assert scaled == pytest.approx(3 * away.recovered / (1 + 9 * away.gradient_norm**2))
    assert scaled < away.curvature


def test_theorem_3_2_the_error_of_the_central_difference_is_of_second_order():
    objective = smooth_network()
    found = central_difference(objective)
    assert found.slope == pytest.approx(2, abs=0.02)
    for rho, error in zip(found.rho, found.error, strict=True):
        assert error == pytest.approx(rho**2 / 12 * found.fourth, rel=0.02)


def test_the_curvature_along_the_gradient_and_its_share_of_the_largest_eigenvalue():
    objective = smooth_network()
    x, y = next(iter(objective.batches))
    names = [name for name, _ in objective.model.named_parameters()]
    sizes = [p.numel() for p in objective.parameters]

    def f(flat: torch.Tensor) -> torch.Tensor:
        parts = [part.view(p.shape) for part, p in zip(flat.split(sizes), objective.model.parameters(), strict=True)]
        return cross_entropy(torch.func.functional_call(objective.model, dict(zip(names, parts, strict=True)), (x,)), y)

    theta = torch.cat([p.detach().reshape(-1) for p in objective.parameters])
    H = torch.autograd.functional.hessian(f, theta)
    u = torch.func.grad(f)(theta)
    u = u / u.norm()
    found = central_difference(objective)
    expected = (u @ H @ u).item()
    assert found.rayleigh == pytest.approx(expected)
    assert found.share == pytest.approx(expected / torch.linalg.eigvalsh(H)[-1].item(), rel=1e-3)
    assert 0 < found.share < 1

    def along(t: torch.Tensor) -> torch.Tensor:
        return f(theta + t * u)

    fourth = torch.func.grad(torch.func.grad(torch.func.grad(torch.func.grad(along))))(torch.zeros(()).double())
    assert found.fourth == pytest.approx(fourth.item(), rel=1e-4)


def test_the_best_step_is_where_the_error_is_least():
    objective = smooth_network()
    found = central_difference(objective)
    best = found.best_rho
    assert 1e-5 < best < 1e-2
    assert best == best_rho(found.loss, found.fourth, 2.0**-52)
    steps = [best * factor for factor in (0.01, 0.03, 1, 30, 100)]
    errors = [abs(error) for error in central_difference(objective, steps).error]
    assert errors[2] < min(errors[0], errors[4])  # rounding to the left, truncation to the right
    assert errors[2] <= best**2 / 6 * abs(found.fourth)  # both parts together, at the most

    def most(rho: float) -> float:
        return rho**2 / 12 * abs(found.fourth) + 4 * found.epsilon * abs(found.loss) / rho**2

    assert most(best) < min(most(best * 0.99), most(best * 1.01))


def test_a_quadratic_has_no_error_and_no_best_step():
    objective, H = least_squares(at=torch.full((1, 6), 0.7, dtype=torch.float64))
    u = objective.gradient()[0] / objective.gradient()[0].norm()
    found = central_difference(objective, (0.1, 0.2))
    assert found.quotient == (pytest.approx((u @ H @ u.T).item()),) * 2
    assert fourth_derivative(objective, [u], 0.1) == pytest.approx(0, abs=1e-10)
    assert best_rho(1.0, 0.0, 1e-16) == math.inf


def test_without_a_gradient_there_is_no_direction():
    model = nn.Linear(2, 1, bias=False).double()
    objective = Objective(model, lambda out, _: 0 * out.sum(), [(torch.ones(1, 2).double(), torch.zeros(1))])
    with pytest.raises(ValueError, match="no direction u"):
        central_difference(objective)


def test_proposition_3_5_beta_star_balances_the_two_gaps():
    alpha, minus, meta = 0.2, -0.1, -0.3
    assert alpha * minus == pytest.approx(beta_star(alpha, minus, meta) * meta)
    assert beta_star(alpha, -0.1, 0.4) == pytest.approx(-0.05)  # a harder virtual domain: the signs differ
    assert math.isnan(beta_star(alpha, minus, 0.0))


def test_the_sign_of_beta_star_and_the_share_that_is_allowed():
    found = beta_stars([(0.1, beta) for beta in (0.05, 0.1, -0.3, math.nan)] + [(0.05, 0.1)])
    assert found is not None
    assert (found.defined, found.positive, found.allowed) == (4, 0.75, 0.5)
    assert beta_stars([(0.1, math.nan)]) is None
