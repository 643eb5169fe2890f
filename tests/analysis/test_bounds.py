import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from mecam.analysis.bounds import bound, bounded_cross_entropy, complexity, gaussian_mean
from mecam.analysis.objective import Objective


def quadratic(*, at: float = 0.0, samples: int = 50, size: int = 2) -> Objective:
    """f = ½‖θ‖², away from its minimum by `at` in every weight."""
    model = nn.Linear(size, 1, bias=False).double()
    with torch.no_grad():
        model.weight.fill_(at)
    inputs = math.sqrt(size) * torch.eye(size, dtype=torch.float64).repeat(samples // size, 1)
    return Objective(model, lambda out, _: (out**2).mean() / 2, [(inputs, torch.zeros(len(inputs)))])


def classifier(samples: int) -> tuple[Objective, Objective]:
    """Two well-separated classes on a line: k = 4 weights, trained, on training and on other data."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(1, 2).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-2.0], [2.0]]))
        model.bias.zero_()

    def data() -> list[tuple[torch.Tensor, torch.Tensor]]:
        labels = torch.randint(0, 2, (samples,), generator=generator)
        noise = 0.3 * torch.randn(samples, 1, generator=generator, dtype=torch.float64)
        return [((2 * labels[:, None] - 1) + noise, labels)]

    loss = bounded_cross_entropy(2.0)
    return Objective(model, loss, data()), Objective(model, loss, data())


def test_the_bounded_loss_clips_every_sample_and_is_at_most_one():
    logits = torch.tensor([[5.0, 0.0], [0.0, 5.0], [1.0, 1.0]])
    targets = torch.tensor([0, 0, 0])
    single = [min(cross_entropy(logits[i : i + 1], targets[i : i + 1]).item(), 2.0) / 2 for i in range(3)]
    assert single[1] == 1.0
    assert bounded_cross_entropy(2.0)(logits, targets).item() == pytest.approx(sum(single) / 3)
    with pytest.raises(ValueError, match="limit=0"):
        bounded_cross_entropy(0)


def test_the_complexity_is_the_one_of_the_proof_with_sigma_put_in():
    k, n, rho, zeta, size = 77_000, 1344, 0.1, 0.05, 12.0
    sigma = rho / (math.sqrt(k) + math.sqrt(math.log(n)))
    inner = k * math.log(1 + size**2 / (k * sigma**2)) / 4 + 0.25 + math.log(n / zeta) + 2 * math.log(6 * n + 3 * k)
    assert complexity(size, k=k, n=n, rho=rho, zeta=zeta) == pytest.approx(math.sqrt(inner / (n - 1)))


def test_the_terms_add_up_on_a_quadratic():
    rho, alpha = 0.2, 0.3
    objective = quadratic(at=0.3)
    found = bound(objective, rho=rho, alpha=alpha, draws=400)
    assert found.loss == pytest.approx(0.09)
    assert found.plus == pytest.approx((0.3 * math.sqrt(2) + rho) ** 2 / 2)
    assert found.regulariser == pytest.approx(alpha * rho**2)  # f(+) + f(−) − 2f = rho² exactly
    assert found.tail == pytest.approx(1 / math.sqrt(50))
    assert found.weight_norm == pytest.approx(0.3 * math.sqrt(2))
    assert found.bound == pytest.approx(found.loss + found.regulariser + found.tail + found.complexity)
    # E ½‖θ+ε‖² = ½‖θ‖² + ½ k σ²
    exact = 0.09 + found.sigma**2
    assert abs(found.gaussian.mean - exact) < 4 * found.gaussian.standard_error
    assert 0 < found.gaussian.standard_error < 0.01


def test_at_the_minimum_of_a_quadratic_the_proofs_step_needs_alpha_one_half():
    objective = quadratic(at=1e-7)  # a gradient to have a direction
    assert not bound(objective, rho=0.1, alpha=0.4).step_holds
    found = bound(objective, rho=0.1, alpha=0.51)
    assert found.step_holds
    assert found.alpha_needed == pytest.approx(0.5, rel=1e-4)
    # away from it a gradient of first order in rho has to be paid for by a term of second order
    assert bound(quadratic(at=0.3), rho=0.1, alpha=0.51).alpha_needed == pytest.approx(0.5 + 0.3 * math.sqrt(2) / 0.1)


def test_where_the_loss_bends_downwards_no_alpha_is_enough():
    model = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        model.weight.fill_(0.4)
    objective = Objective(model, lambda out, _: out.sin().mean(), [(torch.ones(9, 1).double(), torch.zeros(9))])
    found = bound(objective, rho=0.1, alpha=1.0)
    assert found.alpha_needed == math.inf
    assert "alpha ≥ inf is needed" in found.text()


def test_few_weights_and_many_samples_give_a_bound_that_says_something():
    training, other = classifier(20_000)
    found = bound(training, rho=0.5, alpha=0.5, held_out=other)
    assert not found.vacuous
    assert found.gaussian_held_out is not None
    assert found.gaussian_held_out.mean <= found.bound
    assert found.gaussian_step_holds
    assert ": not vacuous" in found.text()
    assert "held-out" in found.text()


def test_many_weights_and_few_samples_are_vacuous():
    found = bound(quadratic(at=0.01, samples=500, size=500), rho=0.05, alpha=0.1)
    assert found.vacuous
    assert ": vacuous" in found.text()


def test_a_larger_loss_takes_a_larger_bound():
    one, ten = (bound(quadratic(at=0.3), rho=0.1, alpha=0.1, largest=M) for M in (1.0, 10.0))
    assert ten.tail == pytest.approx(10 * one.tail)
    assert ten.complexity == pytest.approx(10 * one.complexity)


def test_the_draws_are_those_of_the_seed_and_the_weights_come_back():
    objective = quadratic(at=0.3)
    before = objective.parameters[0].detach().clone()
    first, again, other = (gaussian_mean(objective, 0.1, draws=5, seed=seed) for seed in (0, 0, 1))
    assert first == again != other
    assert torch.equal(objective.parameters[0], before)


def test_what_the_proposition_does_not_cover_is_refused():
    with pytest.raises(ValueError, match=r"outside \[0, 1\]"):
        bound(quadratic(at=3.0), rho=0.1, alpha=0.1)
    with pytest.raises(ValueError, match="rho=0"):
        bound(quadratic(), rho=0.0, alpha=0.1)
    with pytest.raises(ValueError, match="at least 2"):
        bound(quadratic(), rho=0.1, alpha=0.1, draws=1)
