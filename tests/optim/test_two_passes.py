"""Loops and checkpoints of davda54/sam and pytorch_optimizer: the same calls, the same updates."""

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.optim import ESAM, FSAM, GSAM, SAGM, SAM, WSAM, LookSAM, MeCAM, SharpnessAware
from mecam.optim._two_passes import TwoPasses
from tests.optim.flat import batch, closure_for, flatten, network
from tests.optim.test_frozen import Contrast, in_place
from tests.optim.test_frozen import X as X5
from tests.optim.test_passes import METHODS, assert_same_bits, bits

X, Y = batch()
TWO = [method for method in METHODS if issubclass(method, TwoPasses)]
BASES = [(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}), (torch.optim.Adam, {"lr": 0.05, "weight_decay": 0.01})]


def loss_of(model: nn.Module) -> Tensor:
    return F.cross_entropy(model(X), Y)


def their_loop(model: nn.Module, base: Any, rho: float, *, adaptive: bool, steps: int = 5) -> Tensor:
    """Their two steps as plain maths: e = rho s² g / ||s g||, s = |theta| if adaptive, else 1."""
    parameters = list(model.parameters())
    optimizer = base[0](parameters, **base[1])
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model).backward()
        with torch.no_grad():
            old = [p.clone() for p in parameters]
            scales = [p.abs() if adaptive else torch.ones_like(p) for p in parameters]
            size = torch.stack([(s * p.grad).norm() for s, p in zip(scales, parameters, strict=True)]).norm()
            for s, p in zip(scales, parameters, strict=True):
                p.add_(s.square() * p.grad * rho / (size + 1e-12))  # type: ignore[operator]
        optimizer.zero_grad()
        loss_of(model).backward()
        with torch.no_grad():
            for p, was in zip(parameters, old, strict=True):
                p.copy_(was)
        optimizer.step()
    return flatten(parameters)


def two_calls(model: nn.Module, optimizer: Any, steps: int = 5) -> Tensor:
    for _ in range(steps):
        loss_of(model).backward()
        optimizer.first_step(zero_grad=True)
        loss_of(model).backward()
        optimizer.second_step(zero_grad=True)
    return flatten(list(model.parameters()))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("adaptive", [False, True])
def test_their_constructor_and_loop_give_their_updates(base: Any, adaptive: bool) -> None:
    a, b, c = network(), network(), network()
    expected = their_loop(a, base, 0.5, adaptive=adaptive)
    found = two_calls(b, SAM(b.parameters(), base[0], 0.5, adaptive=adaptive, **base[1]))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    by_closure = SAM(c.parameters(), base[0], 0.5, adaptive=adaptive, **base[1])
    for _ in range(5):
        by_closure.step(closure_for(by_closure, c, X, Y))
    torch.testing.assert_close(flatten(list(c.parameters())), expected, rtol=0, atol=1e-9)


def test_their_default_radius_is_kept() -> None:
    for adaptive in (False, True):
        assert SAM(network().parameters(), torch.optim.SGD, lr=0.1, adaptive=adaptive).param_groups[0]["rho"] == 0.05


@pytest.mark.parametrize("method", METHODS)
def test_rho_may_be_given_by_position(method: type[SharpnessAware]) -> None:
    assert method(network().parameters(), torch.optim.SGD, 0.3, lr=0.1).param_groups[0]["rho"] == 0.3  # type: ignore[arg-type]


@pytest.mark.parametrize("method", TWO)
def test_two_calls_are_a_step(method: type[TwoPasses]) -> None:
    a, b = network(), network()
    one, two = (method(m.parameters(), torch.optim.Adam, lr=0.05, track=True) for m in (a, b))  # type: ignore[call-arg]
    for _ in range(4):
        one.step(closure_for(one, a, X, Y))
    assert torch.equal(two_calls(b, two, 4), flatten(list(a.parameters())))
    assert one.last is not None
    assert two.last is not None
    assert one.last.norms == two.last.norms
    torch.testing.assert_close(one.state_dict(), two.state_dict(), rtol=0, atol=0)


def test_which_methods_have_them() -> None:
    assert {SAM, GSAM, SAGM, FSAM, ESAM, WSAM} < set(TWO)
    assert not hasattr(MeCAM, "first_step")
    assert not hasattr(LookSAM, "first_step")


def test_with_the_model_buffers_change_once_a_step() -> None:
    def normed() -> nn.Module:
        return nn.Sequential(network()[0], nn.BatchNorm1d(7, dtype=torch.float64), nn.Linear(7, 3, dtype=torch.float64))

    model = normed()
    plain = copy.deepcopy(model)
    plain(X)
    two_calls(model, SAM(model.parameters(), torch.optim.SGD, lr=0.1, model=model), 1)
    assert torch.equal(model[1].running_mean, plain[1].running_mean)
    assert model[1].num_batches_tracked == 1


def moving_key(given: bool) -> tuple[Contrast, SAM]:
    model = Contrast(in_place)
    return model, SAM(model.query.parameters(), torch.optim.SGD, lr=0.1, model=model if given else None)


def test_with_the_model_a_key_encoder_that_moves_in_the_second_pass_is_refused() -> None:
    model, optimizer = moving_key(given=True)
    model(X5).backward()
    before = bits(model.query)
    optimizer.first_step()
    model(X5).backward()
    with pytest.raises(RuntimeError, match=r"frozen parameters \(key.weight, key.bias\) that cannot be restored"):
        optimizer.second_step()
    assert_same_bits(model.query, before)


@pytest.mark.parametrize("given", [True, False])
def test_a_key_encoder_that_moves_in_the_first_pass_moves_once(given: bool) -> None:
    model, optimizer = moving_key(given)
    plain = copy.deepcopy(model)
    plain(X5)
    model.updates = lambda _: optimizer.first_pass
    model(X5).backward()
    optimizer.first_step()
    model(X5).backward()
    optimizer.second_step()
    assert torch.equal(model.key.weight, plain.key.weight)


def test_shared_noise_is_refused() -> None:
    """The first pass has drawn its random numbers by then."""
    model = network()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, shared_noise=True)
    loss_of(model).backward()
    with pytest.raises(RuntimeError, match=r"does not support .*shared_noise, start, every"):
        optimizer.first_step()


def test_hooks_run_and_schedulers_see_the_step() -> None:
    model, calls = network(), []
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        two_calls(model, optimizer, 1)
        scheduler.step()
    assert calls == ["before", "after"]


class TestBetweenTheCalls:
    def begun(self) -> tuple[nn.Module, SAM]:
        model = network()
        optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
        loss_of(model).backward()
        optimizer.first_step()
        return model, optimizer

    def test_a_checkpoint_that_is_loaded_stays(self) -> None:
        model, optimizer = self.begun()
        zeros = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
        model.load_state_dict(zeros)
        optimizer.load_state_dict(optimizer.state_dict())
        loss_of(model).backward()
        optimizer.first_step()
        loss_of(model).backward()
        optimizer.second_step()
        plain = network()
        plain.load_state_dict(zeros)
        expected = two_calls(plain, SAM(plain.parameters(), torch.optim.SGD, lr=0.1), 1)
        assert torch.equal(flatten(list(model.parameters())), expected)

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, pickle.dumps])
    def test_a_copy_is_refused(self, duplicate: Callable[[Any], Any]) -> None:
        model, optimizer = self.begun()
        with pytest.raises(RuntimeError, match=r"SAM cannot be copied between first_step\(\) and second_step\(\)"):
            duplicate((model, optimizer))
        loss_of(model).backward()
        optimizer.second_step()
        duplicate((model, optimizer))


class TestOrder:
    def test_second_comes_after_first(self) -> None:
        model = network()
        optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
        with pytest.raises(RuntimeError, match=r"second_step\(\) comes after first_step\(\)"):
            optimizer.second_step()
        loss_of(model).backward()
        assert optimizer.first_pass
        optimizer.first_step()
        assert not optimizer.first_pass

    def test_a_loop_that_failed_halfway_finds_the_weights_again(self) -> None:
        model = network()
        optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
        before = bits(model)
        for again, words in (
            (optimizer.first_step, "called twice"),
            (lambda: optimizer.step(closure_for(optimizer, model, X, Y)), r"between first_step\(\) and second_step"),
        ):
            loss_of(model).backward()
            optimizer.first_step()
            with pytest.raises(RuntimeError, match=words):
                again()
            assert_same_bits(model, before)
        optimizer.step(closure_for(optimizer, model, X, Y))

    def test_without_gradients_nothing_moves(self) -> None:
        model = network()
        optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
        before = bits(model)
        with pytest.raises(
            RuntimeError, match=r"^no parameter of this optimizer has a gradient. Was loss.backward\(\) called"
        ):
            optimizer.first_step()
        assert_same_bits(model, before)
        loss_of(model).backward()
        optimizer.first_step()
        with pytest.raises(
            RuntimeError, match=r"^no parameter of this optimizer has a gradient. Was loss.backward\(\) called"
        ):
            optimizer.second_step()
        assert_same_bits(model, before)


class TestCheckpoints:
    def test_of_davda54(self) -> None:
        """Their state is the weights before the step, and nothing of the base optimizer."""
        model = network()
        groups = [{"lr": 0.2, "momentum": 0.9, "rho": 0.07, "adaptive": False, "params": [0, 1, 2, 3]}]
        state = {"state": {i: {"old_p": p.detach().clone()} for i, p in enumerate(model.parameters())}}
        optimizer = SAM(model.parameters(), torch.optim.Adam, lr=0.1)
        kept = copy.deepcopy(state)
        with pytest.warns(UserWarning, match="nothing of the base optimizer, as davda54/sam saves it"):
            optimizer.load_state_dict({**state, "param_groups": [{**optimizer.param_groups[0], **groups[0]}]})
        assert optimizer.param_groups[0]["rho"] == 0.07
        assert not optimizer.state
        optimizer.step(closure_for(optimizer, model, X, Y))
        torch.testing.assert_close(state, kept, rtol=0, atol=0)
        adaptive = SAM(network().parameters(), torch.optim.Adam, lr=0.1, adaptive=True)
        with pytest.raises(ValueError, match="adaptive=False; create SAM with this option"):
            adaptive.load_state_dict({**state, "param_groups": groups})

    def test_of_pytorch_optimizer(self) -> None:
        library = pytest.importorskip("pytorch_optimizer")
        a = network()
        theirs = library.SAM(a.parameters(), torch.optim.Adam, rho=0.3, lr=0.05)
        two_calls(a, theirs, 3)
        b = copy.deepcopy(a)
        ours = SAM(b.parameters(), torch.optim.Adam, lr=0.1)
        ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
        assert ours.param_groups[0]["rho"] == 0.3
        # they add up the norm in float32
        torch.testing.assert_close(two_calls(b, ours, 3), two_calls(a, theirs, 3), rtol=0, atol=1e-6)

    def test_a_hook_that_edits_the_state_edits_a_copy(self) -> None:
        model = network()
        optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
        state = {**optimizer.state_dict(), "note": 1}
        optimizer.register_load_state_dict_pre_hook(lambda _, given: given.pop("note") and None)
        optimizer.load_state_dict(state)
        assert "note" in state


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_in_half_precision_are_warned_of(dtype: torch.dtype) -> None:
    """Most of a perturbation is rounded away: it leaves most weights as they are."""
    torch.manual_seed(0)
    model = nn.Linear(512, 512, dtype=dtype)
    with pytest.warns(UserWarning, match=r"2 of 2 parameters are torch\..*16.*float32 .* torch.autocast") as caught:
        optimizer = SAM(model.parameters(), torch.optim.SGD, 0.01, lr=0.1)
    assert caught[0].filename == __file__
    before = model.weight.detach().clone()
    model(torch.randn(8, 512, dtype=dtype)).float().square().mean().backward()
    optimizer.first_step()
    moved = (model.weight != before).double().mean().item()
    assert moved < (0.25 if dtype == torch.bfloat16 else 0.75)
