"""Convolutions have torch's values and derivatives, of the second order too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mecam.analysis._convolutions import Convolutions, Form
from mecam.analysis.objective import Objective

SHAPES: list[dict[str, Any]] = [
    {"groups": 4, "padding": 1},
    {"groups": 4, "stride": 2, "padding": (0, 2)},
    {"groups": 2, "dilation": 2, "padding": 2, "bias": False},
    {"groups": 2, "padding": "same"},
    {"groups": 1},
]


def convolution(settings: dict[str, Any]) -> nn.Conv2d:
    torch.manual_seed(0)
    return nn.Conv2d(4, 8, 3, **settings).double()


@pytest.mark.parametrize("settings", SHAPES, ids=str)
def test_derivatives_of_both_orders(settings: dict[str, Any]) -> None:
    conv = convolution(settings)
    x = torch.randn(2, 4, 6, 5, dtype=torch.float64, requires_grad=True)
    inputs = (x, *conv.parameters())

    def ours(*_: Tensor) -> Tensor:
        with Convolutions():
            values: Tensor = conv(x)
            return values

    torch.testing.assert_close(ours(), conv(x))
    assert torch.autograd.gradcheck(ours, inputs)
    assert torch.autograd.gradgradcheck(ours, inputs)


def test_padding_by_name_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(Form, "apply", lambda *inputs: seen.append(inputs) or torch.zeros(()))
    with Convolutions():
        for settings in SHAPES:
            convolution(settings)(torch.randn(2, 4, 6, 5, dtype=torch.float64))
    assert len(seen) == len(SHAPES) - 1


def test_numbers_of_numpy_are_numbers() -> None:
    conv, x = convolution({"groups": 4}), torch.randn(2, 4, 6, 5, dtype=torch.float64)
    with Convolutions():
        values = torch.conv2d(x, conv.weight, stride=np.int64(2), groups=4)  # type: ignore[call-overload]
    torch.testing.assert_close(values, torch.conv2d(x, conv.weight, stride=2, groups=4))


def test_complex_numbers_are_left_to_torch() -> None:
    x, weight = torch.randn(2, 4, 6, 5, dtype=torch.complex128), torch.randn(4, 1, 3, 3, dtype=torch.complex128)
    with Convolutions():
        values = torch.conv2d(x, weight, groups=4)
    torch.testing.assert_close(values, torch.conv2d(x, weight, groups=4))


class Casting(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            values: Tensor = super().forward(x)
        return values.float()


def test_under_autocast_it_is_torch_s_own() -> None:
    torch.manual_seed(0)
    model = Casting(nn.Conv2d(3, 6, 1), nn.Tanh(), nn.Conv2d(6, 6, 3, groups=6), nn.Flatten(), nn.Linear(54, 3))
    x, y = torch.randn(4, 3, 5, 5), torch.tensor([0, 1, 2, 0])
    objective = Objective(model, nn.functional.cross_entropy, [(x, y)])
    vector = [torch.randn_like(parameter) for parameter in objective.parameters]
    function = objective.hessian_product(vector)
    slope = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), objective.parameters, create_graph=True)
    torch.testing.assert_close(function, list(torch.autograd.grad(slope, objective.parameters, vector)))


def test_a_hessian_goes_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, apply = [], Form.apply
    monkeypatch.setattr(Form, "apply", lambda *inputs: seen.append(inputs) or apply(*inputs))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.Tanh(), nn.Conv2d(6, 6, 3, groups=6), nn.Flatten(), nn.Linear(54, 3))
    batch = torch.randn(4, 3, 5, 5, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    objective = Objective(model.double(), nn.functional.cross_entropy, [batch])
    vector = [torch.randn_like(parameter) for parameter in objective.parameters]
    function = objective.hessian_product(vector)
    assert seen
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    slope = torch.autograd.grad(loss, objective.parameters, create_graph=True)
    expected = torch.autograd.grad(slope, objective.parameters, vector)
    torch.testing.assert_close(function, list(expected))
