"""The Gauss-Newton and Fisher matrices against dense float64 ones; algorithms on matrices that are made up."""

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap
from torch.nn import functional as F

from mecam.analysis import operators
from mecam.analysis.objective import Objective
from mecam.analysis.operators import Counted, EmpiricalFisher, GaussNewton, Hessian
from mecam.analysis.spectrum import density, eigenvalues, largest, trace
from tests.analysis.nets import data, dense_hessian, flat, network, objective

X, Y = data()
THETA = flat(list(network().parameters()))


def logits(theta: Tensor, x: Tensor) -> Tensor:
    """The logits of `network` as a plain function of its flat weights."""
    w1, b1, w2, b2 = theta[:32].view(8, 4), theta[32:40], theta[40:64].view(3, 8), theta[64:]
    return torch.tanh(x @ w1.T + b1) @ w2.T + b2


def one_loss(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return -(torch.log_softmax(logits(theta, x), 0) * y).sum()


def dense(operator: Any) -> Tensor:
    return torch.stack([operator @ row for row in torch.eye(67, dtype=torch.float64)])


def gauss_newton() -> Tensor:
    """Return the mean of JᵀSJ, S the Hessian of the cross-entropy by the logits."""
    jacobian = vmap(lambda x: jacrev(logits)(THETA, x))(X)
    p = logits(THETA, X).softmax(1)
    return torch.einsum("nci,ncd,ndj->ij", jacobian, torch.diag_embed(p) - p[:, :, None] * p[:, None], jacobian) / 20


def test_the_gauss_newton_matrix_is_the_dense_one() -> None:
    torch.testing.assert_close(dense(GaussNewton(objective())), gauss_newton(), rtol=0, atol=1e-12)


def test_for_cross_entropy_it_is_the_fisher_information() -> None:
    p = logits(THETA, X).softmax(1)
    labels = torch.eye(3, dtype=torch.float64)
    scores = torch.stack([vmap(lambda x, y=y: jacrev(one_loss)(THETA, x, y))(X) for y in labels], dim=1)
    fisher = torch.einsum("nc,nci,ncj->ij", p, scores, scores) / 20  # the expectation over the network's own labels
    torch.testing.assert_close(dense(GaussNewton(objective())), fisher, rtol=0, atol=1e-12)


def test_the_empirical_fisher_matrix_is_the_dense_one() -> None:
    scores = vmap(lambda x, y: jacrev(one_loss)(THETA, x, y))(X, F.one_hot(Y, 3))
    torch.testing.assert_close(dense(EmpiricalFisher(objective())), scores.T @ scores / 20, rtol=0, atol=1e-12)


def test_the_hessian_is_the_dense_one() -> None:
    torch.testing.assert_close(dense(Hessian(objective())), dense_hessian(THETA), rtol=0, atol=1e-12)


def test_another_loss_has_its_own_gauss_newton_matrix() -> None:
    """Of the mean square over outputs, S is 2/3 on the diagonal."""
    targets = torch.randn(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    function = Objective(network(), F.mse_loss, [(X[:12], targets[:12]), (X[12:], targets[12:])])
    jacobian = vmap(lambda x: jacrev(logits)(THETA, x))(X)
    expected = torch.einsum("nci,ncj->ij", jacobian, jacobian) * (2 / 3) / 20
    torch.testing.assert_close(dense(GaussNewton(function)), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [GaussNewton, EmpiricalFisher])
def test_modes_weights_and_gradients_of_the_model_are_as_before(kind: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).double().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    function = Objective(model, F.cross_entropy, [(X, Y)])
    first, second = (kind(function) @ torch.ones(67 + 16, dtype=torch.float64) for _ in range(2))
    assert torch.equal(first, second)  # no dropout
    assert model.training
    assert model[2].training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not first.requires_grad


def test_frozen_weights_are_left_out() -> None:
    model = network()
    model[0].requires_grad_(False)
    operator = GaussNewton(Objective(model, F.cross_entropy, [(X, Y)]))
    assert operator.shape == (27, 27)
    matrix = torch.stack([operator @ row for row in torch.eye(27, dtype=torch.float64)])
    torch.testing.assert_close(matrix, gauss_newton()[40:, 40:], rtol=0, atol=1e-12)


def made_up(size: int = 60, outliers: tuple[float, ...] = (-9.0, 5.0, 30.0)) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    basis, _ = torch.linalg.qr(torch.randn(size, size, generator=generator).double())
    rest = torch.linspace(-0.1, 0.3, size - len(outliers)).double()
    matrix: Tensor = basis @ torch.diag(torch.cat([torch.tensor(outliers).double(), rest])) @ basis.T
    return matrix


def test_algorithms_take_any_matrix() -> None:
    matrix = made_up()
    assert eigenvalues(matrix, 3).values == pytest.approx((30, -9, 5), rel=1e-5)
    assert largest(matrix, tolerance=1e-4).values == pytest.approx((30,), rel=1e-6)
    smooth = density(matrix, steps=30)
    assert (smooth.parameters, smooth.dtype, smooth.samples) == (60, "float64", 0)


def test_hutchpp_is_exact_on_a_matrix_of_low_rank() -> None:
    values, vectors = torch.linalg.eigh(made_up(outliers=(7.0, -2.0, 4.0)))
    few = values.abs() > 1
    result = trace(vectors[:, few] @ values[few].diag() @ vectors[:, few].T, sketch=5, draws=2)
    assert result.estimate == pytest.approx(9, abs=1e-9)
    assert result.standard_error == pytest.approx(0, abs=1e-9)


def test_hutchpp_has_a_smaller_error_at_the_same_number_of_products() -> None:
    matrix = made_up()
    true = float(matrix.trace())
    plain, sketched = ([trace(matrix, seed=s, **how) for s in range(20)] for how in
                       ({"draws": 24}, {"draws": 8, "sketch": 8}))  # fmt: skip
    assert plain[0].products == sketched[0].products == 24
    errors = [sum((each.estimate - true) ** 2 for each in results) for results in (plain, sketched)]
    assert errors[1] < errors[0] / 10
    within = sum(abs(each.estimate - true) < 3 * each.standard_error for each in sketched)
    assert within >= 17


def test_bad_sketches_are_refused() -> None:
    for sketch in (-1, 61):
        with pytest.raises(ValueError, match=rf"sketch={sketch} is not allowed; it must be 0 to 60"):
            trace(made_up(), sketch=sketch)


def test_a_product_that_is_not_finite_names_the_matrix() -> None:
    with pytest.raises(FloatingPointError, match="a product with the Tensor is not finite"):
        Counted(torch.full((3, 3), torch.inf)) @ torch.ones(3)


def test_a_missing_curvlinops_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "repair_torchvision", lambda: False)
    monkeypatch.setitem(sys.modules, "curvlinops", None)
    with pytest.raises(ImportError, match=r"this needs curvlinops \(pip install 'mecam\[analysis\]'\)"):
        GaussNewton(objective())
