"""What a program may expect of any torch optimizer, from each of ours."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

from mecam.optim import SharpnessAware
from tests.optim.flat import batch, flatten, network
from tests.optim.test_passes import GENERIC, METHODS

X, Y = batch()
Make = Callable[..., SharpnessAware]  # of parameters and options
pytestmark = [GENERIC, pytest.mark.filterwarnings("ignore:.* parameters are torch:UserWarning")]  # of half precision


@pytest.fixture(params=METHODS)
def make(request: pytest.FixtureRequest) -> Make:
    """Build the optimizer. `decouples=False`: its weights move by the base optimizer's step alone."""

    def build(params: Any, *, decouples: bool = True, **options: Any) -> SharpnessAware:
        method = request.param
        coupled = {"decouple": False} if not decouples and "decouple" in method.options else {}
        return method(params, torch.optim.SGD, **{"lr": 0.1, "momentum": 0.5, **coupled, **options})

    return build


def closure_of(
    optimizer: torch.optim.Optimizer, model: nn.Module, clear: Callable[[], Any] | None = None, factor: float = 1.0
) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        (clear or optimizer.zero_grad)()
        loss = factor * F.cross_entropy(model(X.to(next(model.parameters()).dtype)), Y)
        loss.backward()
        return loss

    return closure


def train(model: nn.Module, optimizer: Any, steps: int = 2, closure: Callable[[], Any] | None = None) -> Tensor:
    torch.manual_seed(5)  # ESAM draws
    for _ in range(steps):
        optimizer.step(closure or closure_of(optimizer, model))
    return weights(model)


def weights(model: nn.Module) -> Tensor:
    return flatten(list(model.parameters()))


def trained(make: Make, **options: Any) -> Tensor:
    model = network()
    return train(model, make(model.parameters(), **options))


def same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a, b)


def test_is_an_optimizer(make: Make) -> None:
    assert isinstance(make(network().parameters()), torch.optim.Optimizer)


def test_names_itself_and_its_base(make: Make) -> None:
    text = repr(make(network().parameters()))
    assert "on SGD" in text
    assert "lr: 0.1" in text


def test_has_defaults(make: Make) -> None:
    optimizer = make(network().parameters())
    assert {*optimizer.hyperparameters, "lr", "momentum"} <= set(optimizer.defaults)
    assert {*optimizer.hyperparameters, "lr", "momentum"} <= set(optimizer.param_groups[0])


def test_shares_groups_and_state_with_its_base(make: Make) -> None:
    model = network()
    optimizer = make(model.parameters())
    train(model, optimizer)
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups is optimizer.base_optimizer.param_groups
    assert optimizer.state is optimizer.base_optimizer.state


def test_returns_the_loss_at_theta(make: Make) -> None:
    model = network()
    expected = F.cross_entropy(model(X), Y)
    optimizer = make(model.parameters())
    loss = optimizer.step(closure_of(optimizer, model))
    assert torch.equal(loss, expected)
    assert not loss.requires_grad


def test_lowers_the_loss(make: Make) -> None:
    model = network()
    optimizer = make(model.parameters())
    before = F.cross_entropy(model(X), Y)
    train(model, optimizer, 20)
    assert F.cross_entropy(model(X), Y) < before


def test_repeats(make: Make) -> None:
    assert same(trained(make), trained(make))


def test_takes_a_generator_a_list_or_groups(make: Make) -> None:
    models = [network() for _ in range(3)]
    a, b, c = models
    given: list[Any] = [a.parameters(), list(b.parameters()), [{"params": list(c.parameters())}]]
    results = [train(m, make(params)) for m, params in zip(models, given, strict=True)]
    assert same(results[0], results[1])
    assert same(results[0], results[2])


def test_takes_named_parameters(make: Make) -> None:
    model = network()
    assert same(train(model, make(model.named_parameters())), trained(make))


def test_refuses_no_parameters(make: Make) -> None:
    with pytest.raises(ValueError, match="empty parameter list"):
        make([])


def test_refuses_a_typo(make: Make) -> None:
    with pytest.raises(TypeError, match="has an option 'momentun'; did you mean momentum"):
        make(network().parameters(), momentun=0.9)


def test_refuses_a_step_without_closure(make: Make) -> None:
    with pytest.raises(TypeError, match=r"step\(\) needs a closure"):
        make(network().parameters()).step()


def test_zero_grad_sets_to_none(make: Make) -> None:
    model = network()
    optimizer = make(model.parameters())
    train(model, optimizer)
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("by", ["zeros", "the model"])
def test_gradients_may_be_cleared_in_other_ways(make: Make, by: str) -> None:
    model = network()
    optimizer = make(model.parameters())
    clear = partial(optimizer.zero_grad, set_to_none=False) if by == "zeros" else model.zero_grad
    assert same(train(model, optimizer, closure=closure_of(optimizer, model, clear)), trained(make))


def test_refuses_gradients_that_are_not_cleared(make: Make) -> None:
    model = network()
    optimizer = make(model.parameters())
    closure = closure_of(optimizer, model, lambda: None)
    closure()
    with pytest.raises(RuntimeError, match="clear"):
        optimizer.step(closure)


def test_leaves_the_combined_gradient(make: Make) -> None:
    model = network()
    train(model, make(model.parameters()))
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_sums_losses_of_several_backwards(make: Make) -> None:
    model = network()
    optimizer = make(model.parameters())

    def closure() -> float:
        optimizer.zero_grad()
        halves = [F.cross_entropy(model(x), y) / 2 for x, y in zip(X.chunk(2), Y.chunk(2), strict=True)]
        for half in halves:
            half.backward()
        return sum(half.item() for half in halves)

    torch.testing.assert_close(train(model, optimizer, closure=closure), trained(make))


def test_a_closure_may_skip_its_batch(make: Make) -> None:
    model = network()
    optimizer = make(model.parameters())
    before = weights(model)
    assert optimizer.step(lambda: None) is None
    assert same(weights(model), before)


def test_parameters_may_be_unfrozen(make: Make) -> None:
    model = network()
    model[0].requires_grad_(False)  # type: ignore[index]
    optimizer = make(model.parameters())
    train(model, optimizer)
    model[0].requires_grad_(True)  # type: ignore[index]
    before = model[0].weight.detach().clone()  # type: ignore[index]
    train(model, optimizer)
    assert not torch.equal(model[0].weight, before)  # type: ignore[index]


def test_groups_have_their_own_rate(make: Make) -> None:
    model = network()
    still = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}]  # type: ignore[index]
    before = [p.detach().clone() for p in model.parameters()]
    train(model, make(still, decouples=False))
    moved = [not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)]
    assert moved == [False, False, True, True]


def test_a_group_may_join(make: Make) -> None:
    model, other = network(), network()
    optimizer = make(model[0].parameters())  # type: ignore[index]
    optimizer.add_param_group({"params": list(model[2].parameters())})  # type: ignore[index]
    two_groups = [{"params": other[0].parameters()}, {"params": other[2].parameters()}]  # type: ignore[index]
    assert same(train(model, optimizer), train(other, make(two_groups)))


def test_rates_set_by_hand_count(make: Make) -> None:
    model = network()
    optimizer = make(model.parameters(), decouples=False, momentum=0.0)
    train(model, optimizer)
    before = weights(model)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    assert same(train(model, optimizer), before)


def saved(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("through", [copy.deepcopy, saved])
def test_state_dict_resumes(make: Make, through: Callable[[Any], Any]) -> None:
    model = network()
    optimizer = make(model.parameters())
    train(model, optimizer)
    other = copy.deepcopy(model)
    resumed = make(other.parameters())
    resumed.load_state_dict(through(optimizer.state_dict()))
    assert same(train(other, resumed), train(model, optimizer))


def test_state_of_the_base_loads(make: Make) -> None:
    model = network()
    plain = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    train(model, plain)
    optimizer = make(model.parameters())
    optimizer.load_state_dict(plain.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.02
    train(model, optimizer)


def test_step_hooks_run_once(make: Make) -> None:
    model, calls = network(), list[str]()
    optimizer = make(model.parameters())
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    train(model, optimizer, 1)
    assert calls == ["before", "after"]


def test_global_hooks_run_once(make: Make) -> None:
    model, calls = network(), list[str]()
    handle = register_optimizer_step_post_hook(lambda *_: calls.append("after"))
    train(model, make(model.parameters()), 1)
    handle.remove()
    assert calls == ["after"]


def test_state_hooks_run(make: Make) -> None:
    optimizer, calls = make(network().parameters()), list[str]()
    optimizer.register_state_dict_pre_hook(lambda _: calls.append("pack"))
    optimizer.register_state_dict_post_hook(lambda *_: calls.append("packed"))
    optimizer.register_load_state_dict_pre_hook(lambda *_: calls.append("load"))
    optimizer.register_load_state_dict_post_hook(lambda _: calls.append("loaded"))
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == ["pack", "packed", "load", "loaded"]


@pytest.mark.parametrize("kernels", [{"foreach": True}, {"fused": True}])
def test_kernels_agree(make: Make, kernels: dict[str, bool]) -> None:
    torch.testing.assert_close(trained(make, **kernels), trained(make, foreach=False))


def test_a_disabled_scaler_does_nothing(make: Make) -> None:
    model = network()
    optimizer = make(model.parameters())
    torch.manual_seed(5)
    for _ in range(2):
        optimizer.step(closure_of(optimizer, model), scaler=torch.amp.GradScaler("cpu", enabled=False))
    assert same(weights(model), trained(make))


def test_gradients_may_be_off_outside(make: Make) -> None:
    with torch.no_grad():
        assert same(trained(make), trained(make))


def test_a_scheduler_sets_the_rate(make: Make) -> None:
    model = network()
    optimizer = make(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    train(model, optimizer, 1)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_hyperparameters_may_be_tensors(make: Make) -> None:
    model, other = network(), network()
    optimizer, plain = make(model.parameters()), make(other.parameters())
    for group in optimizer.param_groups:
        group["rho"] = torch.tensor(group["rho"], dtype=torch.float64)
    torch.testing.assert_close(train(model, optimizer), train(other, plain))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_trains_in_another_dtype(make: Make, dtype: torch.dtype) -> None:
    model = network(dtype=dtype)
    train(model, make(model.parameters()), 3)
    assert all(p.dtype == dtype and p.isfinite().all() for p in model.parameters())
