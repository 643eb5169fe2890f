"""State: saved in one process and continued in another, copied, pickled; complete for every method."""

import copy
import io
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mecam.optim import FSAM, GAM, SAM, LookSAM, MeCAM, SharpnessAware
from tests.optim.flat import batch, closure_for, flatten, network
from tests.optim.test_passes import GENERIC, METHODS

X, Y = batch()
BASES = {"adam": (torch.optim.Adam, {"lr": 0.1}), "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})}
CONTINUE = """
import sys, torch
from tests.optim.test_checkpoint import BASES, METHODS, build, train
saved = torch.load(sys.argv[1], weights_only=True)
for (name, base), (model_state, optimizer_state) in saved.items():
    model, optimizer = build(next(m for m in METHODS if m.__name__ == name), base)
    model.load_state_dict(model_state)
    optimizer.load_state_dict(optimizer_state)
    saved[name, base] = train(model, optimizer, 4)
torch.save(saved, sys.argv[2])
"""


def build(method: type[SharpnessAware], base: str) -> tuple[nn.Sequential, SharpnessAware]:
    model = network()
    optimizer_class, settings = BASES[base]
    extra = {LookSAM: {"k": 3}}.get(method, {})
    return model, method(model.parameters(), optimizer_class, **settings, **extra)


def train(model: nn.Module, optimizer: SharpnessAware, steps: int) -> Tensor:
    for _ in range(steps):
        optimizer.step(closure_for(optimizer, model, X, Y))
    return flatten(list(model.parameters()))


def test_a_run_continued_in_another_process_ends_bitwise_equal(tmp_path: Path) -> None:
    saved, expected = {}, {}
    for method in METHODS:
        for base in BASES:
            model, optimizer = build(method, base)
            train(model, optimizer, 5)
            state = (copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict()))
            saved[method.__name__, base] = state
            expected[method.__name__, base] = train(model, optimizer, 4)
    torch.save(saved, tmp_path / "saved.pt")
    root = Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, "-c", CONTINUE, str(tmp_path / "saved.pt"), str(tmp_path / "ended.pt")], check=True, cwd=root
    )
    ended = torch.load(tmp_path / "ended.pt", weights_only=True)
    assert ended.keys() == expected.keys()
    for key, weights in expected.items():
        assert torch.equal(ended[key], weights), key


@GENERIC
@pytest.mark.parametrize("method", METHODS)
def test_copies_go_on_alike_and_apart(method: type[SharpnessAware]) -> None:
    model, optimizer = build(method, "adam")
    train(model, optimizer, 4)
    twin_model, twin = copy.deepcopy((model, optimizer))
    stored = io.BytesIO()
    pickle.dump((model, optimizer), stored)
    stored.seek(0)
    third_model, third = pickle.load(stored)
    before = flatten(list(model.parameters()))
    results = [train(twin_model, twin, 3), train(third_model, third, 3)]
    assert torch.equal(flatten(list(model.parameters())), before)  # the copies share nothing with the original
    results.append(train(model, optimizer, 3))
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[2])
    for copied in (twin, third):
        assert copied.param_groups is copied.base_optimizer.param_groups


def test_copies_under_a_scheduler() -> None:
    """Schedulers put a wrapper in place of `step`, which must not travel with a copy."""
    model, optimizer = build(SAM, "adam")
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    train(model, optimizer, 1)
    schedule.step()
    twin_model, twin = copy.deepcopy((model, optimizer))
    assert torch.equal(train(model, optimizer, 2), train(twin_model, twin, 2))


def test_own_tensors_stay_out_of_the_bases_state() -> None:
    model, optimizer = build(FSAM, "adam")
    train(model, optimizer, 2)
    assert all(set(state) == {"step", "exp_avg", "exp_avg_sq"} for state in optimizer.state.values())
    packed = optimizer.state_dict()
    assert set(packed["state"][0]) == {"step", "exp_avg", "exp_avg_sq", "sharpness_m"}
    assert set(packed) == {"state", "param_groups"}
    plain = torch.optim.Adam(network().parameters())
    torch.optim.Adam.load_state_dict(plain, optimizer.base_optimizer.state_dict())  # and the base's own is loadable


def test_what_another_method_kept_is_left_out() -> None:
    model = network()
    other = LookSAM(model.parameters(), torch.optim.Adam, lr=0.1)
    other.step(closure_for(other, model, X, Y))
    optimizer = FSAM(model.parameters(), torch.optim.Adam, lr=0.1)
    with pytest.warns(UserWarning, match="has no m and resets it"):
        optimizer.load_state_dict(other.state_dict())
    optimizer.step(closure_for(optimizer, model, X, Y))
    assert all(set(kept) == {"m"} for kept in optimizer.own_state.values())


@pytest.mark.parametrize("method", [FSAM, LookSAM])
def test_loading_before_the_method_begins_resets_nothing_and_warns_of_nothing(method: type[SharpnessAware]) -> None:
    model = network()
    optimizer, other = (method(model.parameters(), torch.optim.Adam, lr=0.1, start=3) for _ in range(2))
    train(model, optimizer, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.load_state_dict(optimizer.state_dict())
    train(model, optimizer, 1)
    packed = optimizer.state_dict()
    packed["state"] = {}
    with pytest.warns(UserWarning, match=f"has no {method.keeps[0]} and resets it"):
        other.load_state_dict(packed)


def test_loading_is_a_copy() -> None:
    model, optimizer = build(FSAM, "sgd")
    train(model, optimizer, 2)
    other_model, other = build(FSAM, "sgd")
    other.load_state_dict(optimizer.state_dict())
    before = {k: v.clone() for k, v in optimizer.own_state[model[0].weight].items()}
    train(other_model, other, 2)
    assert torch.equal(optimizer.own_state[model[0].weight]["m"], before["m"])


def test_groups_that_do_not_match_are_torchs_error_and_change_nothing() -> None:
    model, optimizer = build(FSAM, "adam")
    train(model, optimizer, 2)
    other = FSAM([{"params": [p]} for p in network().parameters()], torch.optim.Adam, lr=0.1)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        other.load_state_dict(optimizer.state_dict())
    assert not other.own_state


def test_a_value_that_is_refused_changes_nothing() -> None:
    """As GAM's alpha and beta are, which may add up to more than MeCAM's."""
    model = network()
    other = GAM(model.parameters(), torch.optim.Adam, lr=0.2, alpha=1.0, beta=0.5)
    other.step(closure_for(other, model, X, Y))
    optimizer = MeCAM(model.parameters(), torch.optim.Adam, lr=0.1)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=r"alpha=1.0 and beta=0.5 add up to 1.5"):
        optimizer.load_state_dict(other.state_dict())
    assert optimizer.state_dict() == before
