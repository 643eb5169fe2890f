"""MeCAM's limits and its conditions on alpha and beta."""

import warnings

import pytest
import torch
from torch import Tensor, nn

from mecam.optim import SAM, MeCAM
from mecam.virtual import MixStyle
from tests.optim.flat import Tilt, batch, closure_for, flatten, gradient, network

X, Y = batch()


def run(optimizer: torch.optim.Optimizer, model: nn.Module, steps: int = 5) -> Tensor:
    for _ in range(steps):
        optimizer.step(closure_for(optimizer, model, X, Y))
    return flatten(list(model.parameters()))


@pytest.mark.parametrize("base", [torch.optim.Adam, torch.optim.SGD, torch.optim.AdamW])
def test_without_weights_it_is_the_base_optimizer_bit_for_bit(base: type[torch.optim.Optimizer]) -> None:
    a, b = network(), network()
    mine = run(MeCAM(a.parameters(), base, alpha=0.0, beta=0.0, lr=0.05, weight_decay=0.01), a)
    assert torch.equal(mine, run(base(b.parameters(), lr=0.05, weight_decay=0.01), b))


def test_without_weights_and_with_shared_noise_dropout_goes_on_as_with_the_base_optimizer() -> None:
    def dropping() -> nn.Sequential:
        model = network()
        return nn.Sequential(model[0], model[1], nn.Dropout(0.5), model[2])

    a, b = dropping(), dropping()
    torch.manual_seed(0)
    mine = run(MeCAM(a.parameters(), torch.optim.Adam, alpha=0.0, beta=0.0, lr=0.05, shared_noise=True), a)
    torch.manual_seed(0)
    assert torch.equal(mine, run(torch.optim.Adam(b.parameters(), lr=0.05), b))


def test_alpha_one_beta_zero_is_sam() -> None:
    a, b = network(), network()
    mine = run(MeCAM(a.parameters(), torch.optim.Adam, rho=0.3, alpha=1.0, beta=0.0, lr=0.05), a)
    torch.testing.assert_close(
        mine, run(SAM(b.parameters(), torch.optim.Adam, rho=0.3, lr=0.05), b), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize(("alpha", "beta"), [(0.2, 0.2), (0.3, 0.1), (0.5, 0.0)])
def test_on_a_quadratic(alpha: float, beta: float) -> None:
    """grad f + (alpha - beta) rho H u exactly; with alpha = beta the gradient itself."""
    torch.manual_seed(0)
    root = torch.randn(6, 6, dtype=torch.float64)
    H, b = root @ root.T, torch.randn(6, dtype=torch.float64)
    theta = nn.Parameter(torch.randn(6, dtype=torch.float64))
    optimizer = MeCAM([theta], torch.optim.SGD, rho=0.3, alpha=alpha, beta=beta, lr=0.01)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = 0.5 * theta @ H @ theta + b @ theta
        loss.backward()
        return loss

    at = theta.detach().clone()
    optimizer.step(closure)
    g = H @ at + b
    expected = g + (alpha - beta) * 0.3 * H @ (g / g.norm())
    torch.testing.assert_close(theta.grad, expected, rtol=0, atol=1e-12)


def test_radius_zero_is_the_virtual_domain_at_the_same_weights() -> None:
    model = network()
    domain = Tilt(model, 0.4)
    optimizer = MeCAM(model.parameters(), torch.optim.SGD, rho=0.0, alpha=0.3, beta=0.2, virtual_domain=domain, lr=0.1)
    theta = flatten(list(model.parameters()))
    optimizer.step(closure_for(optimizer, model, X, Y))
    expected = 0.8 * gradient(theta, X, Y) + 0.2 * gradient(theta, X, Y, tilt=0.4)
    torch.testing.assert_close(flatten([p.grad for p in model.parameters()]), expected, rtol=0, atol=1e-12)


def test_the_virtual_domain_is_on_in_the_third_pass_only() -> None:
    model = network()
    domain = Tilt(model, 0.4)
    optimizer = MeCAM(model.parameters(), torch.optim.SGD, virtual_domain=domain, lr=0.1)
    states: list[tuple[bool, bool]] = []

    def closure() -> Tensor:
        states.append((domain.on, optimizer.first_pass))
        return closure_for(optimizer, model, X, Y)()

    optimizer.step(closure)
    assert states == [(False, True), (False, False), (True, False)]
    assert not domain.on
    assert optimizer.first_pass


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rho": -0.1}, r"rho=-0.1 .* \[0, inf\)"),
        ({"alpha": -0.1}, r"alpha=-0.1 .* \[0, 1\]"),
        ({"alpha": 1.5}, r"alpha=1.5"),
        ({"alpha": 0.7, "beta": 0.4}, r"add up to 1.1; alpha \+ beta must be in \[0, 1\]"),
        ({"rho": float("nan")}, "rho=nan"),
    ],
)
def test_bad_values_are_refused_with_the_value_and_the_range(settings: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MeCAM(network().parameters(), torch.optim.SGD, lr=0.1, **settings)


def test_beta_above_alpha_warns_at_the_callers_line() -> None:
    with pytest.warns(UserWarning, match="beta <= alpha") as caught:
        MeCAM(network().parameters(), torch.optim.SGD, lr=0.1, alpha=0.1, beta=0.2)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MeCAM(network().parameters(), torch.optim.SGD, lr=0.1, alpha=0.2, beta=0.2)


def test_a_group_with_bad_values_of_its_own_is_refused() -> None:
    model = network()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "alpha": 0.9, "beta": 0.5}]
    with pytest.raises(ValueError, match=r"add up to 1\.4"):
        MeCAM(groups, torch.optim.SGD, lr=0.1)


def test_virtual_domain_without_active_is_refused() -> None:
    with pytest.raises(TypeError, match="must have a method active"):
        MeCAM(network().parameters(), torch.optim.SGD, lr=0.1, virtual_domain=object())  # type: ignore[arg-type]


def test_a_class_as_virtual_domain_is_refused() -> None:
    with pytest.raises(TypeError, match=r"is the class MixStyle; give an object: MixStyle\(\)"):
        MeCAM(network().parameters(), torch.optim.SGD, lr=0.1, virtual_domain=MixStyle)  # type: ignore[arg-type]
