"""The curvature metric and its companions against closed forms, dense Hessians, and a count of passes."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.analysis.curvature import RADII, curvature, exact, plot
from mecam.analysis.objective import Objective
from mecam.report.measured import read_curvature
from tests.analysis.nets import at, data, dense_hessian, flat, network, objective, quadratic

A = torch.tensor([[3.0, 1.0, 0.0], [1.0, -2.0, 0.5], [0.0, 0.5, 1.0]], dtype=torch.float64)
X = torch.tensor([0.7, -0.4, 1.1], dtype=torch.float64)


class Counted(nn.Module):
    """Counts the batches that go through it."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside, self.forwards = inside, 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += 1
        values: Tensor = self.inside(x)
        return values


class Shifted:
    """A virtual domain: the inputs of a layer, moved."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    @contextmanager
    def active(self) -> Iterator[None]:
        handle = self.layer.register_forward_pre_hook(lambda _, inputs: (inputs[0] + 1,))
        yield
        handle.remove()


def test_every_measure_on_a_quadratic_is_its_closed_form() -> None:
    g = A @ X
    u = g / g.norm()
    f = float(0.5 * X @ A @ X)
    measured = curvature(quadratic(A, X), sharpness=True)
    assert [measured.loss, measured.gradient_norm] == pytest.approx([f, float(g.norm())])
    for rho, row in zip(RADII, measured.at, strict=True):
        second = rho**2 * float(u @ A @ u)
        e = X**2 * g / (X * g).norm() * rho
        up = A @ u / (A @ u).norm() * rho
        assert row.rho == rho
        assert row.numerator == pytest.approx(second)
        assert row.signed == pytest.approx(second / (float(g @ g) + 1))
        assert row.curvature == abs(row.signed)
        assert row.scaled == pytest.approx(float(u @ A @ u) / (float(g @ g) + 1))
        assert row.plus == pytest.approx(rho * float(g.norm()) + second / 2)
        assert row.minus == pytest.approx(-rho * float(g.norm()) + second / 2)
        assert row.asam == pytest.approx(float(0.5 * (X + e) @ A @ (X + e)) - f)
        assert row.first_order == pytest.approx(rho * float((A @ (X + up)).norm()))
        assert row.meta is None


def test_a_concave_direction_gives_a_negative_numerator_and_a_positive_metric() -> None:
    measured = curvature(quadratic(-torch.eye(2), torch.tensor([1.0, 2.0]))).at[2]
    assert measured.numerator == pytest.approx(-0.01)
    assert measured.curvature == pytest.approx(0.01 / 6)


def test_the_loss_value_does_not_matter() -> None:
    plain, raised = curvature(quadratic(A, X)), curvature(quadratic(A, X, constant=5.0))
    assert [row.signed for row in raised.at] == pytest.approx([row.signed for row in plain.at], rel=1e-9)
    assert raised.loss == pytest.approx(plain.loss + 5)


def test_on_a_network_the_differences_are_those_of_the_loss_written_another_way() -> None:
    x, y = data()
    theta = flat(list(network().parameters()))
    g = torch.func.grad(lambda t: at(t, x, y))(theta)
    measured = curvature(objective(), (0.1, 0.5))
    for row in measured.at:
        delta = row.rho * g / g.norm()
        second = at(theta + delta, x, y) + at(theta - delta, x, y) - 2 * at(theta, x, y)
        assert row.numerator == pytest.approx(float(second), rel=1e-9)
        assert row.signed == pytest.approx(float(second / (g @ g + 1)), rel=1e-9)


def test_scaled_is_flat_in_rho_up_to_its_square() -> None:
    theta = flat(list(network().parameters()))
    x, y = data()
    g = torch.func.grad(lambda t: at(t, x, y))(theta)
    limit = float(g @ dense_hessian(theta) @ g / (g @ g) / (g @ g + 1))
    errors = [abs(row.scaled - limit) for row in curvature(objective(), (0.05, 0.1, 0.2)).at]
    assert [math.log2(errors[1] / errors[0]), math.log2(errors[2] / errors[1])] == pytest.approx([2, 2], abs=0.1)


def test_the_virtual_domain_is_on_in_its_pass_alone() -> None:
    x, y = data()
    function = objective()
    domain = Shifted(function.model)
    row = curvature(function, (0.3,), virtual_domain=domain).at[0]
    g = function.gradient()
    theta = flat(function.parameters)
    there = theta - 0.3 * flat(g) / flat(g).norm()
    assert row.meta == pytest.approx(float(at(there, x + 1, y) - at(theta, x, y)), rel=1e-9)
    assert row.minus == pytest.approx(float(at(there, x, y) - at(theta, x, y)), rel=1e-9)


@pytest.mark.parametrize("batch", [20, 7])  # one batch, and three
def test_it_costs_one_shared_pass_and_two_forwards_a_rho(batch: int) -> None:
    x, y = data()
    model = Counted(network())
    batches = list(zip(torch.split(x, batch), torch.split(y, batch), strict=True))
    curvature(Objective(model, F.cross_entropy, batches))
    assert model.forwards == (1 + 2 * len(RADII)) * len(batches)


def test_exact_is_the_largest_eigenvalue_over_the_same_denominator() -> None:
    metric = exact(objective(), tolerance=1e-6)
    theta = flat(list(network().parameters()))
    values = torch.linalg.eigvalsh(dense_hessian(theta))
    largest = float(values[values.abs().argmax()])
    x, y = data()
    g = torch.func.grad(lambda t: at(t, x, y))(theta)
    assert metric.eigenvalue == pytest.approx(largest, rel=1e-5)
    assert metric.curvature == pytest.approx(abs(largest) / float(g @ g + 1), rel=1e-5)
    assert exact(quadratic(-A, X)).eigenvalue == pytest.approx(-float(torch.linalg.eigvalsh(A).max()))


def test_at_a_minimum_exact_is_the_largest_eigenvalue_and_the_differences_vanish() -> None:
    minimum = quadratic(A @ A, torch.zeros(3))
    assert exact(minimum).curvature == pytest.approx(float(torch.linalg.eigvalsh(A @ A).max()))
    assert {row.curvature for row in curvature(minimum).at} == {0.0}


def test_float32_agrees_with_float64_where_rho_is_not_tiny() -> None:
    x, y = data()
    single = Objective(network().float(), F.cross_entropy, [(x.float(), y)])
    pairs = zip(curvature(single).at, curvature(objective()).at, strict=True)
    for low, high in pairs:
        assert low.numerator == pytest.approx(high.numerator, abs=5e-7, rel=1e-3)


def test_the_model_is_left_as_it_was() -> None:
    function = objective()
    function.model.train()
    theta = flat(function.parameters)
    curvature(function, sharpness=True, virtual_domain=Shifted(function.model))
    exact(function)
    assert torch.equal(flat(function.parameters), theta)
    assert all(module.training for module in function.model.modules())


def test_a_loss_that_is_not_finite() -> None:
    with pytest.raises(FloatingPointError, match=r"f\(θ\) is nan"):
        curvature(quadratic(torch.full((2, 2), torch.nan), torch.ones(2)))

    def logarithm(x: Tensor, _: Tensor) -> Tensor:  # finite at θ, infinite at θ+δ
        return -torch.log(1 - x[0, 0]) if x[0, 0] < 1 else x.sum() * torch.inf

    batch = (torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1))
    near = Objective(quadratic(torch.eye(1), torch.tensor([0.8])).model, logarithm, [batch])
    measured = curvature(near, (0.1, 0.5))
    assert math.isfinite(measured.at[0].curvature)
    assert not math.isfinite(measured.at[1].curvature)
    values = json.loads(json.dumps(measured.to_dict(), allow_nan=False))
    assert values["curvature"][0] > 0
    assert values["curvature"][1] is None


@pytest.mark.parametrize("radii", [(), (0.1, 0.0), (-0.1,), (math.nan,)])
def test_radii_that_cannot_be(radii: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="positive"):
        curvature(objective(), radii)


def test_the_page_reads_what_to_dict_gives(tmp_path: Path) -> None:
    measured = curvature(objective(), (0.1, 0.2))
    (tmp_path / "curvature.json").write_text(json.dumps(measured.to_dict(exact(objective()))))
    read = read_curvature(tmp_path, 0)
    assert read is not None
    assert (read["split"], read["rho"]) == ("random", [0.1, 0.2])
    np.testing.assert_allclose(
        np.array(read["curvature"], dtype=float), [row.curvature for row in measured.at], rtol=1e-3
    )
    assert read["largest_eigenvalue"] == pytest.approx(exact(objective()).eigenvalue, rel=1e-3)


@pytest.mark.parametrize(("name", "starts"), [("c.png", b"\x89PNG"), ("c.svg", b"<?xml")])
def test_plot_writes_a_file_also_of_negative_and_vanishing_values(tmp_path: Path, name: str, starts: bytes) -> None:
    rows = {
        "network": [curvature(objective()), curvature(objective(1))],
        "concave": [curvature(quadratic(-torch.eye(2), torch.ones(2)))],
        "minimum": [curvature(quadratic(torch.eye(2), torch.zeros(2)))],
    }
    assert plot(rows, tmp_path / name).read_bytes().startswith(starts)


def test_average_sharpness_of_a_quadratic() -> None:
    """E ½δᵀAδ is rho² tr A / 2n on the sphere, and rho² Σ xᵢ² Aᵢᵢ / 2 with noise rho x z."""
    at_both = curvature(quadratic(A, X, constant=2.0), (0.1, 0.5), average=1000).at
    for at_rho in at_both:
        on_sphere, scaled = float(A.trace()) / 6, float(X.square() @ A.diagonal()) / 2
        assert at_rho.average == pytest.approx(at_rho.rho**2 * on_sphere, rel=0.1)
        assert at_rho.adaptive_average == pytest.approx(at_rho.rho**2 * scaled, rel=0.1)
    assert at_both[1].average == pytest.approx(25 * at_both[0].average, rel=1e-9)  # type: ignore[operator]


def test_average_sharpness_leaves_out_the_slope() -> None:
    """A direction and its opposite: what is linear in the weights cancels."""
    steep = Objective(nn.Linear(3, 1, bias=False).double(), lambda out, _: 100 * out.mean(), [(X[None], X[:1])])
    assert curvature(steep, (0.5,), average=3).at[0].average == pytest.approx(0, abs=1e-9)


def test_adaptive_average_sharpness_does_not_change_if_units_are_rescaled() -> None:
    """10 times the first layer and a tenth of the second are the same ReLU network."""
    x, y = data()

    def measured(factor: float) -> tuple[float | None, float | None]:
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
        with torch.no_grad():
            model[0].weight.mul_(factor)
            model[0].bias.mul_(factor)
            model[2].weight.div_(factor)
        found = curvature(Objective(model, F.cross_entropy, [(x, y)]), (0.1,), average=5).at[0]
        return found.average, found.adaptive_average

    (plain, adaptive), (other_plain, other_adaptive) = measured(1.0), measured(10.0)
    assert adaptive == pytest.approx(other_adaptive, rel=1e-9)
    assert plain != pytest.approx(other_plain, rel=0.1)


def test_average_sharpness_is_not_measured_unless_asked_for() -> None:
    found = curvature(quadratic(A, X), (0.1,))
    assert found.at[0].average is None
    assert "average" not in found.to_dict()
