"""The function under study: its value, gradient and Hessian, and a model left as it was."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.analysis.objective import Objective, dot, norm
from tests.analysis.nets import at, data, dense_hessian, flat, network, objective


def test_value_gradient_and_products_are_those_of_the_loss_over_all_data_however_it_is_cut() -> None:
    theta = flat(list(network().parameters()))
    slope = torch.func.grad(lambda t: at(t, *data()))(theta)
    hessian = dense_hessian(theta)
    vector = [torch.randn_like(p) for p in network().parameters()]
    for batch in (1, 7, 20):
        f, gradient = objective(batch=batch).value_and_gradient()
        assert f == pytest.approx(float(at(theta, *data())), rel=1e-12)
        torch.testing.assert_close(flat(gradient), slope, rtol=1e-10, atol=1e-12)
        product = flat(objective(batch=batch).hessian_product(vector))
        torch.testing.assert_close(product, hessian @ flat(vector), rtol=1e-9, atol=1e-12)


def test_elsewhere_is_evaluated_and_the_weights_come_back_bit_for_bit() -> None:
    function = objective()
    theta = flat(function.parameters)
    direction = [torch.randn_like(p) for p in function.parameters]
    there = theta + 0.3 * flat(direction)
    assert function.value(direction, 0.3) == pytest.approx(float(at(there, *data())), rel=1e-12)
    slope = torch.func.grad(lambda t: at(t, *data()))(there)
    torch.testing.assert_close(flat(function.gradient(direction, 0.3)), slope, rtol=1e-10, atol=1e-12)
    assert torch.equal(flat(function.parameters), theta)


def test_weights_come_back_when_the_loss_fails() -> None:
    def refuse(_: Tensor, __: Tensor) -> Tensor:
        raise ZeroDivisionError

    function = Objective(network(), refuse, [data()])
    theta = flat(function.parameters)
    with pytest.raises(ZeroDivisionError):
        function.value([torch.ones_like(p) for p in function.parameters])
    assert torch.equal(flat(function.parameters), theta)


def test_a_model_in_train_mode_is_studied_in_eval_mode_and_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)).double()
    model.train()
    model[1].eval()  # frozen, as batch norms often are
    before = {name: value.clone() for name, value in model.state_dict().items()}
    function = Objective(model, F.cross_entropy, [data()])
    values = {function.value(), function.value_and_gradient()[0]}
    function.hessian_product(function.gradient())
    assert len(values) == 1
    assert [module.training for module in model] == [True, False, True, True]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_frozen_parameters_are_no_part_of_the_weights() -> None:
    model = network()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    function = Objective(model, F.cross_entropy, [data()])
    assert [p.shape for p in function.gradient()] == [(3, 8), (3,)]


@pytest.mark.parametrize(
    ("batches", "error", "says"),
    [(iter([data()]), TypeError, "not an iterator"), ([], ValueError, "no data")],
)
def test_data_that_cannot_be_studied(batches: object, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Objective(network(), F.cross_entropy, batches)  # type: ignore[arg-type]


def test_norm_and_dot_are_those_of_the_flat_vectors() -> None:
    a, b = [torch.randn(3, 2), torch.randn(4)], [torch.randn(3, 2), torch.randn(4)]
    assert norm(a) == pytest.approx(float(flat(a).double().norm()))
    assert dot(a, b) == pytest.approx(float(flat(a).double() @ flat(b).double()))


def test_no_tf32_while_a_model_is_studied() -> None:
    """It rounds weights to 11 bits: a small step would change none of them."""
    kinds = (torch.backends.cudnn.conv, torch.backends.cudnn.rnn, torch.backends.cuda.matmul)  # type: ignore[attr-defined]
    before = [kind.fp32_precision for kind in kinds]
    seen = []

    class Looks(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append([kind.fp32_precision for kind in kinds])
            return super().forward(x)

    Objective(Looks(4, 3).double(), F.cross_entropy, [data()]).value()
    assert seen == [["ieee"] * 3]
    assert before != seen[0]
    assert [kind.fp32_precision for kind in kinds] == before
