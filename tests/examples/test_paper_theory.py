"""The paper's statements, with the functions of examples/paper_theory.ipynb, which runs from top to bottom here."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.analysis.objective import Objective, dot
from mecam.figures import two_minima

NOTEBOOK = Path(__file__).parents[2] / "examples" / "paper_theory.ipynb"
START = (2.0, -3.0, 0.5, 1.5)


@pytest.fixture(scope="module")
def paper() -> Any:
    """The names that the notebook defines."""
    import matplotlib as mpl

    mpl.use("Agg", force=True)
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {"__name__": "notebook"}
    state = torch.get_rng_state()
    for number, cell in enumerate(cells):
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    torch.set_rng_state(state)
    assert sum("image/png" in output.get("data", {}) for cell in cells for output in cell["outputs"]) == 2
    return SimpleNamespace(**names)


def quadratic(*, at: float, size: int = 2, samples: int = 50) -> Objective:
    """f = ½‖θ‖², with every weight at `at`."""
    model = nn.Linear(size, 1, bias=False).double()
    nn.init.constant_(model.weight, at)
    inputs = math.sqrt(size) * torch.eye(size, dtype=torch.float64).repeat(samples // size, 1)
    return Objective(model, lambda out, _: (out**2).mean() / 2, [(inputs, torch.zeros(len(inputs)))])


class TestLemma31:
    def test_at_a_convex_minimum_it_holds(self, paper: Any) -> None:
        objective, hessian = paper.least_squares()
        highest, lowest, c, length = paper.lemma(objective)
        assert highest == pytest.approx(torch.linalg.eigvalsh(hessian)[-1].item(), abs=1e-6)
        assert c == pytest.approx(highest, abs=1e-6)
        assert lowest > 0
        assert length < 1e-9

    def test_elsewhere_the_gradient_lowers_c(self, paper: Any) -> None:
        objective, hessian = paper.least_squares(0.7)
        highest, _, c, length = paper.lemma(objective)
        assert length == pytest.approx((hessian @ torch.full((6, 1), 0.7, dtype=torch.float64)).norm().item())
        assert c == pytest.approx(highest / (1 + length**2))

    def test_at_a_saddle_it_fails(self, paper: Any) -> None:
        assert paper.lemma(paper.saddle()) == (pytest.approx(2), pytest.approx(-6), pytest.approx(6), 0)

    def test_c_does_not_see_the_height_and_scales_with_f_at_a_minimum_only(self, paper: Any) -> None:
        def c(away: float, factor: float = 1.0, height: float = 0.0) -> float:
            loss = paper.least_squares(away, lambda out, y: factor * F.mse_loss(out, y) + height)[0]
            return float(paper.lemma(loss)[2])

        assert c(0.7, height=1000) == pytest.approx(c(0.7))
        assert c(0.0, factor=3) == pytest.approx(3 * c(0.0))
        assert c(0.7, factor=3) < c(0.7)


class TestTheorem32:
    def test_the_error_is_of_second_order(self, paper: Any) -> None:
        objective = paper.tanh_network()
        f, u, rayleigh, fourth = paper.along_gradient(objective)
        radii = np.array([8, 16, 32, 64]) * paper.best_rho(f, fourth)
        errors = np.array([paper.quotient(objective, f, u, rho) - rayleigh for rho in radii])
        assert np.polyfit(np.log(radii), np.log(np.abs(errors)), 1)[0] == pytest.approx(2, abs=0.02)
        np.testing.assert_allclose(errors, radii**2 / 12 * fourth, rtol=0.02)

    def test_the_derivatives_are_those_of_autograd(self, paper: Any) -> None:
        objective = paper.tanh_network()
        _, u, rayleigh, fourth = paper.along_gradient(objective)
        names = [name for name, _ in objective.model.named_parameters()]
        x, y = objective.batches[0]

        def along(t: Tensor) -> Tensor:
            moved = [p.detach() + t * part for p, part in zip(objective.parameters, u, strict=True)]
            named = dict(zip(names, moved, strict=True))
            return F.cross_entropy(torch.func.functional_call(objective.model, named, (x,)), y)

        second = torch.func.grad(torch.func.grad(along))
        zero = torch.zeros((), dtype=torch.float64)
        assert rayleigh == pytest.approx(second(zero).item())
        assert rayleigh == pytest.approx(dot(u, objective.hessian_product(u)))
        assert fourth == pytest.approx(torch.func.grad(torch.func.grad(second))(zero).item(), rel=1e-4)
        assert 0 < rayleigh < paper.top

    def test_the_best_radius_balances_rounding_and_truncation(self, paper: Any) -> None:
        objective = paper.tanh_network()
        f, u, rayleigh, fourth = paper.along_gradient(objective)
        best = paper.best_rho(f, fourth)
        shorter, there, longer = (abs(paper.quotient(objective, f, u, best * x) - rayleigh) for x in (0.01, 1, 100))
        assert there < min(shorter, longer)
        assert there <= best**2 / 6 * abs(fourth)

    def test_relus_leave_an_error_that_does_not_shrink(self, paper: Any) -> None:
        model = nn.Linear(1, 1, bias=False).double()  # f = relu(w) at w = 0.05, H = 0
        nn.init.constant_(model.weight, 0.05)
        one = torch.ones(1, 1, dtype=torch.float64)
        objective = Objective(model, lambda out, _: out.relu().mean(), [(one, one)])
        direction = [torch.ones(1, 1, dtype=torch.float64)]
        assert paper.quotient(objective, 0.05, direction, 0.1) == pytest.approx(5.0)
        assert paper.quotient(objective, 0.05, direction, 0.01) == pytest.approx(0.0, abs=1e-9)


class TestProposition33:
    def test_the_complexity_is_the_one_of_the_proof_with_sigma_put_in(self, paper: Any) -> None:
        k, n, rho, size = 77_000, 1344, 0.1, 12.0
        sigma = rho / (math.sqrt(k) + math.sqrt(math.log(n)))
        inner = k * math.log(1 + size**2 / (k * sigma**2)) / 4 + 0.25 + math.log(n / 0.05) + 2 * math.log(6 * n + 3 * k)
        assert paper.complexity(size, k, n, rho) == pytest.approx(math.sqrt(inner / (n - 1)))

    def test_the_terms_on_a_quadratic(self, paper: Any) -> None:
        objective, rho = quadratic(at=0.3), 0.2
        terms = paper.bound(objective, rho, alpha=0.3)
        assert terms["loss"] == pytest.approx(0.09)
        assert terms["regulariser"] == pytest.approx(0.3 * rho**2)
        assert terms["bound"] == pytest.approx(0.09 + 0.3 * rho**2 + terms["M/√n"] + terms["complexity"])
        mean, error = paper.gaussian_mean(objective, terms["sigma"], draws=400)
        assert abs(mean - 0.09 - terms["sigma"] ** 2) < 4 * error  # E ½‖θ+ε‖² = ½‖θ‖² + ½ k σ²
        assert 0 < error < 0.01

    def test_the_step_of_the_proof_needs_alpha_one_half_at_a_minimum_and_more_with_a_gradient(self, paper: Any) -> None:
        assert paper.bound(quadratic(at=1e-7), 0.1, 0.1)["needed"] == pytest.approx(0.5, rel=1e-4)
        assert paper.bound(quadratic(at=0.3), 0.1, 0.1)["needed"] == pytest.approx(0.5 + 0.3 * math.sqrt(2) / 0.1)

    def test_the_loss_is_clipped_per_sample(self, paper: Any) -> None:
        logits, labels = torch.tensor([[5.0, 0.0], [0.0, 5.0], [1.0, 1.0]]), torch.tensor([0, 0, 0])
        single = [min(F.cross_entropy(logits[i : i + 1], labels[i : i + 1]).item(), 2.0) / 2 for i in range(3)]
        assert single[1] == 1.0
        assert paper.bounded_cross_entropy(2.0)(logits, labels).item() == pytest.approx(sum(single) / 3)

    def test_few_weights_and_many_samples_give_a_bound_that_is_not_vacuous(self, paper: Any) -> None:
        training, other = paper.classifier(20_000)
        terms = paper.bound(training, rho=0.5, alpha=0.5)
        assert paper.gaussian_mean(other, terms["sigma"])[0] <= terms["bound"] < 1
        assert paper.bound(paper.classifier(20)[0], rho=0.5, alpha=0.5)["bound"] > 1
        assert paper.bound(quadratic(at=0.01, size=500, samples=500), rho=0.05, alpha=0.1)["bound"] > 1


class TestTheorem34:
    def test_the_problem_is_as_smooth_as_assumed(self, paper: Any) -> None:
        x = torch.linspace(-5, 5, 2001, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(paper.smooth(x), x, create_graph=True)
        torch.testing.assert_close(slope, paper.slope(x))
        (bend,) = torch.autograd.grad(slope.sum(), x)
        assert bend.abs().max().item() == pytest.approx(1)
        assert bend.min().item() < -0.1  # not convex
        assert slope.abs().max().item() == pytest.approx(0.5)

    def test_the_constants(self, paper: Any) -> None:
        at_theta, beside = paper.constants(smoothness=2.0, largest=3.0, gap=5.0, lr=0.1, rho=0.4, alpha=0.2)
        c2 = 2 * 0.2 * 2 * 3 * 0.4 + 0.5 * 2 * 9 * 0.1
        assert at_theta == (pytest.approx(50 + c2), pytest.approx(c2))
        assert beside == (pytest.approx(2 * (50 + c2) + 2 * 0.64), pytest.approx(2 * c2 + 2 * 0.64))

    @pytest.mark.parametrize("noise", [0.0, 0.3])
    def test_the_gradients_of_f_and_of_the_overall_objective_stay_under_their_bounds(
        self, paper: Any, noise: float
    ) -> None:
        means, bounds = paper.converge(START, 100, noise=noise)
        for name, limit in {"theta": "theta", "plus": "beside", "minus": "beside", "overall": "overall"}.items():
            assert (means[name] <= bounds[limit]).all(), name
            assert means[name][-1] < 0.5 * means[name][0]
        # the paper's own inequality, ‖a + b + c‖² ≤ 10/3 (‖a‖² + ‖b‖² + ‖c‖²), is wider
        wider = 10 / 3 * (0.6**2 * means["theta"] + 0.2**2 * (means["plus"] + means["minus"]))
        assert (means["overall"] <= wider).all()

    def test_the_rate_of_the_overall_objective(self, paper: Any) -> None:
        """√T/log T times the mean does not grow: O(log T/√T)."""
        means, _ = paper.converge(START, 1000, noise=0.3)
        scaled = [math.sqrt(T) / math.log(T) * means["overall"][T - 1].item() for T in (30, 100, 300, 1000)]
        assert scaled == sorted(scaled, reverse=True)

    def test_the_gradient_through_delta(self, paper: Any) -> None:
        """F with δ(θ) by central differences; on this problem the dropped term is small."""
        x = torch.tensor(START, dtype=torch.float64)

        def overall(x: Tensor) -> Tensor:
            delta = 0.4 * paper.slope(x) / paper.slope(x).norm()
            total: Tensor = 0.6 * paper.smooth(x) + 0.2 * paper.smooth(x + delta) + 0.2 * paper.smooth(x - delta)
            return total

        step = 1e-5 * torch.eye(4, dtype=torch.float64)
        numeric = torch.stack([(overall(x + e) - overall(x - e)) / 2e-5 for e in step])
        torch.testing.assert_close(paper.through_delta(x, 0.4, 0.2), numeric, rtol=0, atol=1e-8)
        assert paper.means["through delta"][-1].item() == pytest.approx(paper.means["overall"][-1].item(), rel=0.05)

    def test_the_steps_are_mecams(self, paper: Any) -> None:
        means, _ = paper.converge(START, 3, lr=0.5, rho=0.4, alpha=0.2)
        x, total = torch.tensor(START, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
        for t in range(1, 4):
            g = paper.slope(x)
            delta = 0.4 / math.sqrt(t) * g / g.norm()
            plus, minus = paper.slope(x + delta), paper.slope(x - delta)
            update = 0.6 * g + 0.2 * plus + 0.2 * minus
            total += torch.stack([g, plus, minus, update]).square().sum(1)
            x = x - 0.5 / math.sqrt(t) * update
        for name, value in zip(("theta", "plus", "minus", "overall"), total / 3, strict=True):
            assert means[name][-1].item() == pytest.approx(value.item(), rel=1e-10)

    def test_with_a_constant_radius_and_noise_the_bound_beside_is_broken(self, paper: Any) -> None:
        assert min(paper.stuck["plus"][-1], paper.stuck["minus"][-1]) > paper.stuck_bounds["beside"][-1]
        assert paper.stuck["plus"][-1].item() == pytest.approx((0.3 / (1 + 0.3**2)) ** 2, rel=0.05)
        assert paper.stuck["theta"][-1] <= paper.stuck_bounds["theta"][-1]


def test_proposition_3_5_is_tracked(paper: Any) -> None:
    betas = paper.tracker.summary().betas
    assert betas.defined == 100
    assert 0.5 < betas.allowed <= betas.positive <= 1


class TestFigure2:
    def test_sams_loss_prefers_the_sharp_minimum_and_the_curvature_the_flat_one(self, paper: Any) -> None:
        sharp, flat = paper.at["sharp"], paper.at["flat"]
        assert sharp.loss < flat.loss
        assert sharp.sam_loss < flat.sam_loss
        assert sharp.curvature > 10 * flat.curvature
        wide = [two_minima.measure(well, 0.6).sam_loss for well in two_minima.WELLS]
        assert wide[1] < wide[0]  # a radius as wide as the wells

    def test_they_are_minima(self, paper: Any) -> None:
        for at in paper.at.values():
            left, here, right = two_minima.loss(at.x + np.array([-1e-3, 0.0, 1e-3]))
            assert here == at.loss < min(left, right)
            assert at.sam_loss == pytest.approx(two_minima.loss(at.x + np.linspace(-0.15, 0.15, 10_001)).max())

    def test_the_curvature_is_that_of_the_loss(self) -> None:
        def f(x: Tensor) -> Tensor:
            wells = [(-1.0, 0.9, 0.25), (1.2, 0.5, 0.8)]
            return 1 + 0.01 * x**2 - sum(d * torch.exp(-((x - c) ** 2) / (2 * w**2)) for c, d, w in wells)

        x = torch.linspace(-2, 3, 101, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), x)
        points = x.detach().numpy()
        np.testing.assert_allclose(two_minima.loss(points), f(x).detach().numpy())
        expected = (bend.abs() / (slope**2 + 1)).detach().numpy()
        np.testing.assert_allclose(two_minima.curvature(points), expected, atol=1e-12)
