"""Plain: a base optimizer as it is, under the family's interface."""

import copy
from typing import Any

import pytest
import torch
from pytorch_optimizer import AdaBelief, AdaHessian, Yogi
from torch import Tensor, nn

from mecam.optim import SharpnessAware, clear_state
from mecam.optim.plain import Plain

BASES: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (torch.optim.SGD, {"lr": 0.1}),
    (Yogi, {"lr": 0.01}),
    (AdaBelief, {"lr": 0.01}),
    (AdaHessian, {"lr": 0.01}),
]
INPUTS, TARGETS = torch.randn(12, 4, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 3


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


def step(model: nn.Module, optimizer: Any, *, graph: bool, factor: float = 1.0) -> Tensor:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = factor * nn.functional.cross_entropy(model(INPUTS), TARGETS)
        loss.backward(create_graph=graph)  # type: ignore[no-untyped-call]
        return loss.detach()

    loss: Tensor = optimizer.step(closure)
    return loss


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize(("base", "settings"), BASES)
@pytest.mark.parametrize("nonfinite", ["raise", "skip", "ignore"])
def test_it_steps_as_its_base_does(base: type, settings: dict[str, Any], nonfinite: Any) -> None:
    model = network()
    other = copy.deepcopy(model)
    plain, wrapped = (
        base(model.parameters(), **settings),
        Plain(other.parameters(), base, nonfinite=nonfinite, **settings),
    )
    for number in range(6):
        if number == 3:
            clear_state(plain)
            clear_state(wrapped)
        torch.manual_seed(number)
        expected = step(model, plain, graph=base is AdaHessian)
        torch.manual_seed(number)
        assert torch.equal(step(other, wrapped, graph=wrapped.needs_graph), expected)
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert (wrapped.passes, wrapped.first("taken"), wrapped.skipped) == (1, 6, 0)


def test_it_copies_neither_weights_nor_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    next(model.parameters()).requires_grad_(False)
    optimizer = Plain(model.parameters(), torch.optim.SGD, lr=0.1, model=model)
    step(model, optimizer, graph=False)
    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "clone", None)
        patch.setattr("mecam.optim._buffers.clones", None)
        patch.setattr("mecam.optim.vector.clones", None)
        patch.setattr("mecam.optim._frozen.Mark", None)
        step(model, optimizer, graph=False)


@pytest.mark.parametrize(("base", "settings"), BASES[:4])
def test_a_step_that_is_not_finite(base: type, settings: dict[str, Any]) -> None:
    model = network()
    optimizer = Plain(model.parameters(), base, nonfinite="skip", **settings)
    step(model, optimizer, graph=False)
    before = copy.deepcopy((list(model.parameters()), optimizer.state_dict()["state"]))
    step(model, optimizer, graph=False, factor=torch.nan)
    torch.testing.assert_close((list(model.parameters()), optimizer.state_dict()["state"]), before, rtol=0, atol=0)
    assert (optimizer.first("taken"), optimizer.skipped) == (1, 1)
    optimizer.nonfinite = "raise"
    with pytest.raises(FloatingPointError, match="not finite"):
        step(model, optimizer, graph=False, factor=torch.inf)


@pytest.mark.parametrize(("base", "settings"), BASES[:4])
def test_it_resumes_from_a_state_of_its_base(base: type, settings: dict[str, Any]) -> None:
    model = network()
    plain = base(model.parameters(), **settings)
    step(model, plain, graph=False)
    other = copy.deepcopy(model)
    wrapped = Plain(other.parameters(), base, **settings)
    wrapped.load_state_dict(copy.deepcopy(plain.state_dict()))
    for _ in range(2):
        step(model, plain, graph=False)
        step(other, wrapped, graph=False)
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_weights_of_half_precision_are_no_reason_to_warn(recwarn: pytest.WarningsRecorder) -> None:
    Plain([torch.zeros(2, dtype=torch.bfloat16, requires_grad=True)], torch.optim.SGD, lr=0.1)
    assert not recwarn


@pytest.mark.parametrize(
    ("base", "options", "expected"),
    [
        (torch.optim.Adam, {}, "steps"),
        (torch.optim.Adam, {"shared_noise": True}, "nothing"),
        (Yogi, {}, "passes"),
        (AdaHessian, {}, "nothing"),
    ],
)
def test_what_a_graph_can_replay(base: type, options: dict[str, Any], expected: str) -> None:
    optimizer: SharpnessAware = Plain([torch.zeros(2, requires_grad=True)], base, **options)
    assert optimizer.capturable == expected
