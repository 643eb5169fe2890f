"""Training that stops and goes on in new processes, by torch.distributed.checkpoint, comes to where it would have."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from mecam.optim import FSAM, LookSAM, MeCAM, SharpnessAware
from tests.optim import distributed
from tests.optim.distributed import Ranks, needs_fsdp2, run

pytestmark = [needs_fsdp2, pytest.mark.filterwarnings("ignore:torch.distributed is disabled")]

HALF = 3  # steps before the checkpoint, and after it: LookSAM, k = 2, stops between two looks

METHODS: dict[str, Callable[..., SharpnessAware]] = {
    "fsam": partial(FSAM, lam=0.6),
    "looksam": partial(LookSAM, k=2),
    "mecam": partial(MeCAM, alpha=0.4, beta=0.3),
}
BASES: dict[str, dict[str, Any]] = {
    "adam": {"base_optimizer": torch.optim.Adam},
    "stateless sgd": {"base_optimizer": torch.optim.SGD},
}
RUNS = list(itertools.product(METHODS, BASES))
DEALT_OUT = [run for run in RUNS if run != ("mecam", "stateless sgd")]  # DCP refuses it where there is no state at all

Result = dict[str, Tensor]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.frozen = nn.Linear(7, 7).requires_grad_(False)
        self.last = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.frozen(torch.tanh(self.first(x)))))


def build(method: str, base: str, *, seed: int, rho: float, lr: float) -> tuple[Net, SharpnessAware]:
    """A network, sharded where there is a process group, and its optimizer with two parameter groups."""
    torch.manual_seed(seed)
    model = Net().double()
    if dist.is_initialized():
        fully_shard(model.first)
        fully_shard(model)
    groups = [
        {"params": [*model.first.parameters(), *model.frozen.parameters()]},
        {"params": list(model.last.parameters()), "rho": 2 * rho},
    ]
    return model, METHODS[method](groups, rho=rho, lr=lr, **BASES[base])


def begin(method: str, base: str) -> tuple[Net, SharpnessAware]:
    return build(method, base, seed=1, rho=0.3, lr=0.05)


def begin_elsewhere(method: str, base: str) -> tuple[Net, SharpnessAware]:
    """Other weights and hyperparameters: nothing but the checkpoint can bring the right ones."""
    return build(method, base, seed=2, rho=0.05, lr=0.4)


def train(model: nn.Module, optimizer: SharpnessAware, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(12, 5, dtype=torch.float64, generator=generator)
        y = torch.randint(0, 3, (12,), generator=generator)
        if dist.is_initialized():
            x, y = (t.chunk(dist.get_world_size())[dist.get_rank()] for t in (x, y))

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)


def snapshot(model: nn.Module, optimizer: SharpnessAware) -> Result:
    """Weights, and the optimizer's whole state by parameter name."""
    found = dict(model.named_parameters())
    for name, parameter in model.named_parameters():
        own = optimizer.own_state.get(parameter, {})
        found |= {f"{name}.{k}": v for k, v in (*optimizer.state.get(parameter, {}).items(), *own.items())}
    for number, group in enumerate(optimizer.param_groups):
        found |= {f"group {number}.{k}": torch.tensor(group[k]) for k in ("rho", "lr", "taken", "skipped")}
    return {k: (v.full_tensor() if isinstance(v, DTensor) else v).detach().clone() for k, v in found.items()}


def save(model: nn.Module, optimizer: SharpnessAware, folder: Path) -> None:
    optimizer.zero_grad()  # without gradients DCP cannot tell a stateless optimizer in use from a new one
    states = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.save(states, checkpoint_id=folder)


def load(model: nn.Module, optimizer: SharpnessAware, folder: Path) -> None:
    states = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.load(states, checkpoint_id=folder)
    set_model_state_dict(model, states["model"])
    set_optimizer_state_dict(model, optimizer, states["optimizer"])


def uninterrupted(method: str, base: str) -> Result:
    model, optimizer = begin(method, base)
    train(model, optimizer, range(2 * HALF))
    return snapshot(model, optimizer)


def saved(method: str, base: str, folder: Path, after: int = HALF) -> Result:
    """Train, save a checkpoint on the way, go on."""
    model, optimizer = begin(method, base)
    train(model, optimizer, range(after))
    save(model, optimizer, folder)
    train(model, optimizer, range(after, 2 * HALF))
    return snapshot(model, optimizer)


def resumed(method: str, base: str, folder: Path, after: int = HALF) -> Result:
    model, optimizer = begin_elsewhere(method, base)
    load(model, optimizer, folder)
    train(model, optimizer, range(after, 2 * HALF))
    return snapshot(model, optimizer)


def dealt_out(method: str, base: str) -> Result:
    """A full state in the first rank's memory, from which all ranks get their shards."""
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    model, optimizer = begin(method, base)
    train(model, optimizer, range(HALF))
    states = get_model_state_dict(model, options=options), get_optimizer_state_dict(model, optimizer, options=options)
    if dist.get_rank() != 0:
        states = {}, {}
    model, optimizer = begin_elsewhere(method, base)
    set_model_state_dict(model, states[0], options=options)
    set_optimizer_state_dict(model, optimizer, states[1], options=options)
    train(model, optimizer, range(HALF, 2 * HALF))
    return snapshot(model, optimizer)


def checkpoint(folder: Path, kind: str, method: str, base: str) -> Path:
    return folder / f"{kind} {method} {base}"


def first_cases(folder: Path) -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = {}
    for method, base in RUNS:
        found[f"uninterrupted: {method}, {base}"] = partial(uninterrupted, method, base)
        found[f"saved: {method}, {base}"] = partial(saved, method, base, checkpoint(folder, "two", method, base))
    for method, base in DEALT_OUT:
        found[f"dealt out: {method}, {base}"] = partial(dealt_out, method, base)
    return found


def second_cases(folder: Path, kind: str) -> dict[str, Callable[[], Any]]:
    return {
        f"resumed: {method}, {base}": partial(resumed, method, base, checkpoint(folder, kind, method, base))
        for method, base in RUNS
    }


one_thread = pytest.fixture(autouse=True)(distributed.one_thread)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dcp")


@pytest.fixture(scope="module")
def before(folder: Path) -> Ranks:
    """Two processes that train with FSDP2 and leave checkpoints behind."""
    return run(first_cases(folder), folder / "before")


@pytest.fixture(scope="module")
def after(folder: Path, before: Ranks) -> Ranks:
    """Two new processes that go on from there."""
    assert before.failed is None, before.why
    return run(second_cases(folder, "two"), folder / "after")


@pytest.fixture(scope="module")
def single(folder: Path) -> dict[str, tuple[Result, Result]]:
    """The same in this process: the uninterrupted run, and the one that left a checkpoint behind."""
    return {
        f"{method}, {base}": (
            uninterrupted(method, base),
            saved(method, base, checkpoint(folder, "one", method, base)),
        )
        for method, base in RUNS
    }


@pytest.fixture(scope="module")
def alone(folder: Path, before: Ranks, single: Any) -> Ranks:
    """One new process that goes on from this process's checkpoints, and from those of the two."""
    assert before.failed is None, before.why
    assert single
    kinds = {f"{kind} {name}": case for kind in ("one", "two") for name, case in second_cases(folder, kind).items()}
    return run(kinds, folder / "alone", processes=1)


def differences(found: Result, expected: Result) -> dict[str, float]:
    """By how much the two differ, where they do."""
    assert found.keys() == expected.keys()
    pairs = {name: (found[name].double() - expected[name].double()).abs().max().item() for name in expected}
    return {name: difference for name, difference in pairs.items() if difference != 0}


@pytest.mark.parametrize(("method", "base"), RUNS)
def test_saving_does_not_disturb_the_run(single: Any, before: Ranks, method: str, base: str) -> None:
    plain, with_save = single[f"{method}, {base}"]
    assert not differences(with_save, plain)
    for found, expected in zip(
        before[f"saved: {method}, {base}"], before[f"uninterrupted: {method}, {base}"], strict=True
    ):
        assert not differences(found, expected)


@pytest.mark.parametrize(("method", "base"), RUNS)
def test_one_new_process_resumes_bit_for_bit(single: Any, alone: Ranks, method: str, base: str) -> None:
    (found,) = alone[f"one resumed: {method}, {base}"]
    assert not differences(found, single[f"{method}, {base}"][0])


@pytest.mark.works_with(
    "torch FSDP2", "distributed checkpoint (DCP): two new processes resume bit for bit", packages=["torch"]
)
@pytest.mark.parametrize(("method", "base"), RUNS)
def test_two_new_processes_resume_bit_for_bit(before: Ranks, after: Ranks, method: str, base: str) -> None:
    uninterrupted = before[f"uninterrupted: {method}, {base}"]
    for found, expected in zip(after[f"resumed: {method}, {base}"], uninterrupted, strict=True):
        assert not differences(found, expected)


@pytest.mark.parametrize(("method", "base"), RUNS)
def test_one_process_resumes_what_two_have_saved(before: Ranks, alone: Ranks, method: str, base: str) -> None:
    (found,) = alone[f"two resumed: {method}, {base}"]
    expected = before[f"uninterrupted: {method}, {base}"][0]
    assert max(differences(found, expected).values(), default=0.0) < 1e-12  # one process adds up in another order


@pytest.mark.parametrize(("method", "base"), DEALT_OUT)
def test_a_full_state_is_dealt_out_from_the_first_rank(before: Ranks, method: str, base: str) -> None:
    expected = before[f"uninterrupted: {method}, {base}"]
    for found, wanted in zip(before[f"dealt out: {method}, {base}"], expected, strict=True):
        assert not differences(found, wanted)


def test_a_flat_state_without_what_the_method_keeps_is_announced() -> None:
    """DCP asks the base optimizer's state for the names of what it unflattens, so that FSAM's m gets lost."""
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    model, optimizer = begin("fsam", "adam")
    train(model, optimizer, range(HALF))
    state = get_optimizer_state_dict(model, optimizer, options=options)
    model, optimizer = begin_elsewhere("fsam", "adam")
    with pytest.warns(UserWarning, match="has no m and resets it"):
        set_optimizer_state_dict(model, optimizer, state, options=options)
    model, optimizer = begin("mecam", "adam")
    train(model, optimizer, range(HALF))
    expected = snapshot(model, optimizer)
    state = get_optimizer_state_dict(model, optimizer, options=options)
    set_optimizer_state_dict(model, optimizer, state, options=options)  # nothing to lose here
    assert not differences(snapshot(model, optimizer), expected)


@pytest.mark.parametrize("method", METHODS)
def test_a_checkpoint_before_the_first_step(tmp_path: Path, method: str) -> None:
    """With a stateless base; a new Adam counts DCP's own call as its first step, with and without a wrapper."""
    base = "stateless sgd"
    expected = uninterrupted(method, base)
    assert not differences(saved(method, base, tmp_path, after=0), expected)
    assert not differences(resumed(method, base, tmp_path, after=0), expected)
