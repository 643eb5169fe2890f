"""Eigenvalues, trace and density against dense Hessians and matrices whose spectrum is known."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.analysis.objective import Objective
from mecam.analysis.spectrum import End, density, eigenpairs, eigenvalues, largest, plot, trace
from mecam.progress import Event
from tests.analysis.nets import data, dense_hessian, flat, network, objective, quadratic

KNOWN = torch.cat([torch.tensor([-9.0, -3.0, 5.0, 8.0]), torch.linspace(-0.5, 0.5, 56)]).double()


def with_spectrum(values: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    basis, _ = torch.linalg.qr(torch.randn(len(values), len(values), generator=generator).double())
    matrix: Tensor = basis @ torch.diag(values.double()) @ basis.T
    return matrix


def known() -> Objective:
    return quadratic(with_spectrum(KNOWN), torch.ones(len(KNOWN)))


@pytest.mark.parametrize(
    ("end", "expected"),
    [("magnitude", (-9, 8, 5, -3)), ("highest", (8, 5)), ("lowest", (-9, -3)), ("both", (-9, 8, 5, -3))],
)
def test_eigenvalues_of_a_known_matrix(end: End, expected: tuple[float, ...]) -> None:
    result = eigenvalues(known(), len(expected), end=end)
    assert result.values == pytest.approx(expected, rel=1e-5)
    assert (result.parameters, result.samples, result.data, result.dtype) == (60, 1, "quadratic", "float64")


@pytest.mark.parametrize("k", [1, 5, 40, 67])  # by ARPACK, and so many that the matrix itself is taken
def test_eigenvalues_are_those_of_the_dense_hessian(k: int) -> None:
    function = objective()
    true = torch.linalg.eigvalsh(dense_hessian(flat(function.parameters)))
    largest = true[true.abs().argsort(descending=True)][:k]
    np.testing.assert_allclose(eigenvalues(function, k, tolerance=1e-6).values, largest, rtol=1e-5, atol=1e-12)


def test_the_default_tolerance_and_float32_give_one_percent() -> None:
    true = torch.linalg.eigvalsh(dense_hessian(flat(objective().parameters))).abs().max()
    x, y = data()
    single = Objective(network().float(), F.cross_entropy, [(x.float(), y)])
    for result in (eigenvalues(objective()), eigenvalues(single)):
        assert abs(result.values[0]) == pytest.approx(float(true), rel=0.01)


def test_the_largest_alone_takes_fewer_products() -> None:
    result = largest(known(), tolerance=1e-3)
    assert result.values == pytest.approx((-9,), rel=1e-5)
    assert result.tolerance == 1e-3
    assert result.products < eigenvalues(known()).products
    true = torch.linalg.eigvalsh(dense_hessian(flat(objective().parameters))).abs().max()
    assert abs(largest(objective()).values[0]) == pytest.approx(float(true), rel=0.01)


def test_the_largest_reports_what_it_reached() -> None:
    result = largest(known(), tolerance=1e-9, most=4)
    assert result.products == 4
    assert result.tolerance > 1e-9
    assert abs(result.values[0] + 9) <= 9 * result.tolerance * 1.001  # an eigenvalue is that near; here it is this one
    with pytest.raises(ValueError, match="most=0 is not allowed"):
        largest(known(), most=0)


@pytest.mark.parametrize("size", [1, 3, 50])
def test_the_largest_of_small_and_flat_losses(size: int) -> None:
    assert largest(quadratic(torch.zeros(size, size), torch.ones(size))).values == (0,)
    assert largest(quadratic(2 * torch.eye(size), torch.ones(size))).values == pytest.approx((2,))


def test_eigenvectors_are_unit_directions_on_which_the_hessian_is_the_eigenvalue() -> None:
    function = objective()
    values, vectors = eigenpairs(function, 3, tolerance=1e-8)
    for value, vector in zip(values.values, vectors, strict=True):
        assert [part.shape for part in vector] == [p.shape for p in function.parameters]
        assert float(flat(vector).norm()) == pytest.approx(1)
        torch.testing.assert_close(flat(function.hessian_product(vector)), value * flat(vector), rtol=0, atol=1e-7)


@pytest.mark.parametrize("size", [3, 50])
def test_a_flat_loss_has_eigenvalues_of_zero(size: int) -> None:
    flat_loss = quadratic(torch.zeros(size, size), torch.ones(size))
    assert eigenvalues(flat_loss, 2).values == (0, 0)


def test_the_same_seed_gives_the_same_and_torch_s_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second = ((eigenvalues(objective()), trace(objective()), density(objective(), steps=10)) for _ in range(2))
    assert torch.equal(torch.rand(1), expected)
    assert first == second


def test_trace_is_the_sum_of_the_eigenvalues_within_its_error() -> None:
    function = objective()
    true = float(dense_hessian(flat(function.parameters)).trace())
    estimate = trace(function, draws=200)
    assert abs(estimate.estimate - true) < 4 * estimate.standard_error
    assert 0 < estimate.standard_error < 0.1 * true
    both = trace(function, draws=50)
    assert estimate.standard_error == pytest.approx(both.standard_error / 2, rel=0.4)


def test_the_trace_of_a_diagonal_matrix_is_exact() -> None:
    result = trace(quadratic(torch.diag(torch.tensor([1.0, 2.0, -4.0])), torch.ones(3)), draws=3)
    assert (result.estimate, result.standard_error) == (-1, 0)


def test_the_density_has_the_moments_and_the_mass_of_the_true_spectrum() -> None:
    values = torch.cat([torch.full((90,), 0.0), torch.full((30,), 10.0)])
    values += torch.linspace(-0.1, 0.1, 120)
    smooth = density(quadratic(with_spectrum(values), torch.ones(120)), steps=40, repeats=20)
    grid, share = np.array(smooth.grid), np.array(smooth.density)
    step = grid[1] - grid[0]
    assert share.sum() * step == pytest.approx(1, abs=0.02)
    assert (share * grid).sum() * step == pytest.approx(float(values.mean()), rel=0.1)
    assert share[grid > 5].sum() * step == pytest.approx(0.25, abs=0.04)
    assert share[(grid > 2) & (grid < 8)].sum() * step < 0.01


def test_plot_writes_the_format_asked_for(tmp_path: Path) -> None:
    smooth = density(objective(), steps=10, repeats=1)
    assert plot(smooth, tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in plot(smooth, tmp_path / "new" / "a.svg").read_bytes()


def test_progress_counts_the_products() -> None:
    events: list[Event] = []
    result = eigenvalues(objective(), progress=events.append)
    assert [event.done for event in events] == list(range(1, result.products + 1))


def test_a_loss_that_is_not_finite_is_reported() -> None:
    with pytest.raises(FloatingPointError, match="not finite"):
        eigenvalues(quadratic(torch.full((30, 30), torch.inf), torch.ones(30)))


def test_bad_requests() -> None:
    with pytest.raises(ValueError, match=r"k=68 .* 1 to 67"):
        eigenvalues(objective(), 68)
    with pytest.raises(ValueError, match="magnitude, highest"):
        eigenvalues(objective(), end="top")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="k must be at least 2, got 1"):
        eigenvalues(objective(), end="both")
    with pytest.raises(ValueError, match="at least 2"):
        trace(objective(), draws=1)
    with pytest.raises(ValueError, match="every eigenvalue is 0"):
        density(quadratic(torch.zeros(30, 30), torch.ones(30)))
