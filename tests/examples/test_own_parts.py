"""The formulas of the examples that define an optimizer or a method."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mecam.methods import Batch
from mecam.methods.registry import find as find_method
from mecam.optim import MeCAM
from mecam.optim.registry import find as find_optimizer
from tests.optim.flat import Tilt, batch, closure_for, flatten, gradient, network

EXAMPLES = Path(__file__).parents[2] / "examples"
X, Y = batch()
LR = 0.1


def load(file: str, name: str) -> Any:
    return runpy.run_path(str(EXAMPLES / file))[name]


pytestmark = pytest.mark.usefixtures("own_parts")  # the examples register them


def test_inner_step() -> None:
    model = network()
    domain = Tilt(model, 0.4)
    optimizer = load("inner_step.py", "InnerMeCAM")(
        model.parameters(), torch.optim.SGD, lr=LR, rho=0.3, alpha=0.3, beta=0.2, eta=0.7, virtual_domain=domain
    )
    theta = flatten(list(model.parameters()))
    for _ in range(3):
        g = gradient(theta, X, Y)
        sharp = gradient(theta + 0.3 * g / g.norm(), X, Y)
        expected = 0.5 * g + 0.3 * sharp + 0.2 * gradient(theta - 0.7 * g, X, Y, tilt=0.4)
        optimizer.step(closure_for(optimizer, model, X, Y))
        theta = theta - LR * expected
        torch.testing.assert_close(flatten(list(model.parameters())), theta, rtol=0, atol=1e-11)


def test_curvature_radius() -> None:
    model = network()
    optimizer = load("curvature_radius.py", "CurveMeCAM")(
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
        theta = theta - LR * (g + 0.02 / h**2 / (g @ g + 1) * (plus + minus - 2 * g))
        torch.testing.assert_close(flatten(list(model.parameters())), theta, rtol=0, atol=1e-11)
        assert optimizer.noted("curvature").item() == pytest.approx(mean, rel=1e-9)
    assert len({round(h, 6) for h in lengths}) == 6


def test_curvature_radius_penalises_the_curvature_along_the_gradient() -> None:
    """On a cubic the central difference is exact: the penalty's gradient is that of uᵀHu, u held constant."""
    root = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def cubic(x: Tensor) -> Tensor:
        return 0.5 * x @ (root @ root.T) @ x + root[0] @ x + ((root @ x) ** 3).sum() / 6

    theta = nn.Parameter(root[1].clone())
    optimizer = load("curvature_radius.py", "CurveMeCAM")([theta], torch.optim.SGD, lr=0.0, rho=0.5, alpha=0.7)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cubic(theta)
        loss.backward()
        return loss

    optimizer.step(closure)
    g = torch.func.grad(cubic)(root[1])
    u = g / g.norm()
    third = torch.func.grad(lambda x: u @ torch.func.hessian(cubic)(x) @ u)(root[1])
    torch.testing.assert_close(theta.grad, g + 0.7 / (g @ g + 1) * third, rtol=0, atol=1e-9)


def test_held_out_domain() -> None:
    """MeCAM perturbs by the other domains and takes its meta pass on the one held out."""
    method = load("held_out_domain.py", "HeldOut")()
    data = Batch(torch.randn(18, 5, dtype=torch.float64), torch.randint(0, 3, (18,)), domains=3)
    generator = torch.Generator().manual_seed(0)
    draws = [method.draw(data, generator) for _ in range(20)]
    assert {int(held_out[0]) // 6 for _, held_out in draws} == {0, 1, 2}
    assert all(sorted([*others.tolist(), *held_out.tolist()]) == list(range(18)) for others, held_out in draws)
    others, held_out = draws[0]
    model = network()
    theta = flatten(list(model.parameters()))
    optimizer = MeCAM(
        model.parameters(),
        torch.optim.SGD,
        lr=1.0,
        rho=0.3,
        alpha=0.3,
        beta=0.2,
        virtual_domain=method.virtual_domain,
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = method.gradient(model, data, draws[0], None)[0]
        return loss

    optimizer.step(closure)
    g = gradient(theta, data.images[others], data.labels[others])
    delta = 0.3 * g / g.norm()
    plus = gradient(theta + delta, data.images[others], data.labels[others])
    meta = gradient(theta - delta, data.images[held_out], data.labels[held_out])
    expected = theta - (0.5 * g + 0.3 * plus + 0.2 * meta)
    torch.testing.assert_close(flatten(list(model.parameters())), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("find", "name", "file"),
    [
        (find_optimizer, "curvemecam", "curvature_radius.py"),
        (find_optimizer, "innermecam", "inner_step.py"),
        (find_method, "heldout", "held_out_domain.py"),
    ],
)
def test_an_old_name_leads_to_its_example(find: Any, name: str, file: str) -> None:
    with pytest.raises(ValueError, match=f"{name!r} is not part of mecam; its code is in examples/{file}"):
        find(name)
    assert (EXAMPLES / file).exists()
