"""A base optimizer's step that the device can take back, and nonfinite='skip' over every base optimizer."""

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pytorch_optimizer import AdaBelief, AdaHessian, Yogi
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.optim import FSAM, SAM, WSAM, LookSAM, MeCAM, SharpnessAware, clear_state
from mecam.optim._update import Update, can_decide_on_device, masked_step
from tests.optim.flat import batch, network

X, Y = batch()
NOT_A_BASE = {torch.optim.Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam}
CLASSES = [c for c in vars(torch.optim).values() if inspect.isclass(c) and issubclass(c, torch.optim.Optimizer)]
BASES = [c for c in dict.fromkeys(CLASSES) if c not in NOT_A_BASE]
EXTRA: dict[str, list[dict[str, Any]]] = {
    "SGD": [{"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "fused": True}, {"fused": True}],
    "Adam": [{"amsgrad": True, "weight_decay": 0.1}, {"lr": torch.tensor(0.01), "foreach": False}],
    "RMSprop": [{"momentum": 0.9, "centered": True}],
    "Adagrad": [{"lr_decay": 0.1, "initial_accumulator_value": 0.2}],
}


def options_of(base: Any) -> Any:
    return inspect.signature(base).parameters


def settings(base: type[torch.optim.Optimizer]) -> list[dict[str, Any]]:
    """Every implementation of a step that runs on the CPU: single tensors, foreach and fused."""
    options = options_of(base)
    kinds = [
        {kind: value} for kind, value in (("foreach", True), ("foreach", False), ("fused", True)) if kind in options
    ]
    return [{}, *kinds, *EXTRA.get(base.__name__, [])]


CASES = [pytest.param(b, s, id=f"{b.__name__} {s or ''}") for b in BASES for s in settings(b)]


def parameters() -> list[Tensor]:
    """Two matrices (Muon takes nothing else), one of them without gradient now and then."""
    torch.manual_seed(3)
    return [nn.Parameter(torch.randn(4, 3)) for _ in range(2)]


def set_gradients(tensors: list[Tensor], seed: int, holes: bool = False) -> None:
    torch.manual_seed(seed)
    for i, tensor in enumerate(tensors):
        gradient = torch.randn_like(tensor)
        tensor.grad = None if holes and i == 1 else gradient


def everything(tensors: list[Tensor], optimizer: torch.optim.Optimizer) -> Any:
    return copy.deepcopy(([t.detach() for t in tensors], optimizer.state_dict()))


def assert_same(one: Any, two: Any) -> None:
    torch.testing.assert_close(one, two, rtol=0, atol=0)


def test_every_optimizer_of_torch_is_here() -> None:
    assert {base.__name__ for base in BASES} >= {"Adam", "AdamW", "SGD", "RMSprop", "Rprop", "NAdam", "RAdam", "ASGD"}


@pytest.mark.parametrize(("base", "options"), CASES)
def test_a_masked_step_is_a_step_or_nothing(base: type[torch.optim.Optimizer], options: dict[str, Any]) -> None:
    ours, theirs = parameters(), parameters()
    masked, plain = base(ours, **options), base(theirs, **options)
    for tensors, optimizer in ((ours, masked), (theirs, plain)):
        set_gradients(tensors, seed=0)
        optimizer.step()  # makes the state, which cannot be unmade
    assert can_decide_on_device(masked, [], torch.device("cpu")) or not masked.state

    for seed in range(1, 4):
        before = everything(ours, masked)
        set_gradients(ours, seed=100 + seed, holes=seed == 2)
        ours[0].grad[0, 0] = torch.nan  # type: ignore[index]
        masked_step(masked, torch.tensor(False))
        assert_same(everything(ours, masked), before)

        for tensors in (ours, theirs):
            set_gradients(tensors, seed, holes=seed == 3)
        masked_step(masked, torch.tensor(True))
        plain.step()
        assert_same(everything(ours, masked), everything(theirs, plain))


def test_a_state_that_does_not_exist_yet_cannot_be_undone() -> None:
    tensors = parameters()
    adam, device = torch.optim.Adam(tensors), torch.device("cpu")
    set_gradients(tensors, seed=0)
    assert not can_decide_on_device(adam, [], device)
    set_gradients(tensors, seed=0, holes=True)
    adam.step()
    assert can_decide_on_device(adam, [], device)
    set_gradients(tensors, seed=1)
    assert not can_decide_on_device(adam, [], device), "the second parameter has no state"
    sgd = torch.optim.SGD(tensors)
    assert not can_decide_on_device(sgd, [], device)
    assert can_decide_on_device(sgd, tensors, device), "stepped before, it never has a state"


@pytest.mark.parametrize("base", [torch.optim.Adam, torch.optim.SGD])
def test_a_state_that_was_cleared_does_not_exist_either(base: type[torch.optim.Optimizer]) -> None:
    """The next step makes it anew; taken back on the device, it would leave moments of NaN for ever."""
    model = network()
    optimizer = SAM(model.parameters(), base, lr=0.1, nonfinite="skip")
    optimizer.step(closure_for(optimizer, model))
    clear_state(optimizer)
    stateless = base is torch.optim.SGD
    assert can_decide_on_device(optimizer.base_optimizer, optimizer._stepped, torch.device("cpu")) == stateless


def test_only_what_lies_on_the_device_can_be_undone_there() -> None:
    tensors = parameters()
    set_gradients(tensors, seed=0)
    adam, yogi = torch.optim.Adam(tensors), Yogi(tensors)
    adam.step()
    yogi.step()
    assert not can_decide_on_device(adam, [], torch.device("meta"))
    assert not can_decide_on_device(yogi, tensors, torch.device("cpu")), "it counts steps in Python"


def closure_for(optimizer: Any, model: nn.Module, spoil: float = 1.0) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X), Y) * spoil
        loss.backward(create_graph=optimizer.needs_graph)
        return loss

    return closure


THIRD_PARTY = [(b, {"weight_decouple": False}) for b in (Yogi, AdaBelief, AdaHessian)]
USABLE = [*CASES, *(pytest.param(b, s, id=b.__name__) for b, s in THIRD_PARTY)]


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph:UserWarning")
@pytest.mark.parametrize(("base", "options"), USABLE)
def test_skip_over_every_base(base: type[torch.optim.Optimizer], options: dict[str, Any]) -> None:
    if "rho" in options_of(base):
        with pytest.raises(ValueError, match="hyperparameter 'rho' of its own"):
            SAM(network().parameters(), base, **options)
        return
    model, twin = network(), network()
    matrices = [[p for p in m.parameters() if p.dim() == 2 or base.__name__ != "Muon"] for m in (model, twin)]
    optimizer, undisturbed = (SAM(p, base, nonfinite="skip", **copy.deepcopy(options)) for p in matrices)
    for step, spoil in enumerate((torch.nan, 1.0, torch.inf, 1.0, torch.nan)):
        before = everything(list(model.parameters()), optimizer)
        torch.manual_seed(step)
        optimizer.step(closure_for(optimizer, model, spoil))
        if spoil == 1:
            torch.manual_seed(step)
            undisturbed.step(closure_for(undisturbed, twin))
            assert_same(list(model.parameters()), list(twin.parameters()))
            continue
        for group in before[1]["param_groups"]:
            group["skipped"] += 1
        assert_same(everything(list(model.parameters()), optimizer), before)
    assert optimizer.skipped == 3
    assert optimizer.param_groups[0]["taken"] == 2
    assert not torch.equal(next(model.parameters()), next(network().parameters()))


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph:UserWarning")
@pytest.mark.parametrize(("base", "options"), [c for c in USABLE if "rho" not in options_of(c.values[0])])
def test_an_error_leaves_everything_as_it_was(base: type[torch.optim.Optimizer], options: dict[str, Any]) -> None:
    """In the first step too, where the base has made no state yet."""
    model = network()
    matrices = [p for p in model.parameters() if p.dim() == 2 or base.__name__ != "Muon"]
    optimizer = SAM(matrices, base, **copy.deepcopy(options))
    for _ in range(2):
        before = everything(list(model.parameters()), optimizer)
        with pytest.raises(FloatingPointError):
            optimizer.step(closure_for(optimizer, model, torch.nan))
        assert_same(everything(list(model.parameters()), optimizer), before)
        optimizer.step(closure_for(optimizer, model))


def test_wsam_skips_if_only_its_own_move_is_not_finite() -> None:
    """The base gets the first pass's gradient, which is finite; the second pass's goes into the move after it."""
    model = network()
    optimizer = WSAM(model.parameters(), torch.optim.Adam, nonfinite="skip")
    before, calls = everything(list(model.parameters()), optimizer)[0], 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        return closure_for(optimizer, model, 1.0 if calls == 1 else torch.nan)()

    optimizer.step(closure)
    assert calls == 2
    assert optimizer.skipped == 1
    assert not optimizer.state
    assert_same(list(model.parameters()), before)


@pytest.mark.parametrize("method", [MeCAM, FSAM, LookSAM, WSAM])
@pytest.mark.parametrize("base", [{}, {"fused": True}], ids=["Adam", "fused Adam"])
def test_the_methods_own_state_is_taken_back_with_it(
    method: type[SharpnessAware], base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device's way on the CPU: the base steps under a verdict that nobody reads."""

    def unread(_update: Update, finite: Tensor, below: torch.optim.Optimizer, _: Any) -> Tensor:
        masked_step(below, finite)
        return finite

    model, twin = network(), network()
    extra = {"k": 2} if method is LookSAM else {}
    optimizer, undisturbed = (
        method(m.parameters(), torch.optim.Adam, lr=0.05, nonfinite="skip", **base, **extra) for m in (model, twin)
    )
    for spoil in (1.0, torch.nan, 1.0, torch.inf, torch.nan, 1.0):
        with monkeypatch.context() as patch:
            patch.setattr(Update, "step_if", unread)
            optimizer.step(closure_for(optimizer, model, spoil))
        if spoil == 1:
            undisturbed.step(closure_for(undisturbed, twin))
        assert_same(list(model.parameters()), list(twin.parameters()))
        assert_same(optimizer.state_dict()["state"], undisturbed.state_dict()["state"])
    assert isinstance(optimizer.skipped, Tensor)
    assert int(optimizer.skipped) == 3
    assert int(optimizer.param_groups[0]["taken"]) == 3
