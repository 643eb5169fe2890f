"""On a GPU: a step as a CUDA graph is the step that Python would take, bit for bit; and steps that can be repeated."""

from __future__ import annotations

import copy
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mecam import methods
from mecam.data.shapes import shapes
from mecam.methods import METHODS
from mecam.models import fold_frozen
from mecam.optim import OPTIMIZERS
from mecam.optim.graphs import Captured
from mecam.recipe import Recipe
from mecam.training import train
from mecam.training.machine import find_machine
from mecam.training.rates import Rates
from mecam.training.run import Run
from mecam.training.state import load_state_dict, state_dict
from mecam.training.step import train_step

Weights = dict[str, Tensor]
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DATA = shapes(per_class=8)
CAPTURABLE = [name for name in METHODS if vars(type(methods.create(name))).get("capturable")]
HOST = {name for name, entry in OPTIMIZERS.items() if entry.sharpness_aware and entry.sharpness_aware.decides_on_host}
TORCHS = [name for name, entry in OPTIMIZERS.items() if name not in HOST and name not in ("adahessian",)]


def run_of(*, captures: str, **values: Any) -> Run:
    chosen = {"target": "art", "batch": 4, "steps": 6, "deterministic": True, "precision": "fp32", **values}
    run = Run(Recipe(**chosen), find_machine("cuda", "fp32", deterministic=True), DATA)
    run.captures.what = captures  # type: ignore[assignment]
    run.rates = Rates(run.recipe, run.optimizer, run.machine.device)  # as a run that captures from the start has them
    return run


def same_after(steps: int, kind: str = "steps", **values: Any) -> None:
    """Require that a captured run and an eager one end at the same weights."""
    eager, captured = run_of(captures="nothing", **values), run_of(captures=kind, **values)
    for step in range(steps):
        torch.manual_seed(step)
        expected = train_step(eager, step)
        torch.manual_seed(step)
        found = train_step(captured, step)
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
    torch.testing.assert_close(captured.trained.state_dict(), eager.trained.state_dict(), rtol=0, atol=0)
    assert captured.captures.graphs
    assert all(each._graph is not None for each in captured.captures.graphs.values())


@pytest.mark.parametrize("method", CAPTURABLE)
def test_every_capturable_method(method: str) -> None:
    settings = {"anneal": 2500.0} if method in ("irm", "vrex", "fishr", "trm") else {}  # in the middle: at step 3 of 6
    same_after(6, method=method, method_settings=settings)


@pytest.mark.parametrize(
    "optimizer", [name for name in TORCHS if name in ("adam", "adamw", "sgd") or OPTIMIZERS[name].sharpness_aware]
)
def test_every_capturable_optimizer(optimizer: str) -> None:
    settings = {"k": 2} if optimizer == "looksam" else {}  # looks and steps between, each often enough to be captured
    same_after(5, optimizer=optimizer, virtual="none", optimizer_settings=settings)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "sam", "wsam", "gam", "looksam", "mecam"])
def test_schedules(optimizer: str) -> None:
    values: dict[str, Any] = {"lr_schedule": "cosine", "warmup": 2}
    if OPTIMIZERS[optimizer].sharpness_aware:
        values |= {"rho_schedule": "inverse_sqrt", "rho_warmup": 1}
    settings = {"k": 2} if optimizer == "looksam" else {}
    same_after(6, optimizer=optimizer, virtual="none", optimizer_settings=settings, **values)


@pytest.mark.parametrize("base", ["adam", "adamw", "sgd"])
def test_a_graph_reads_the_scheduled_values(base: str) -> None:
    recipe = Recipe(target="art", batch=4, steps=9, optimizer="sam", base=base, warmup=9, lr=0.01)
    run = Run(replace(recipe, rho_warmup=9), find_machine("cuda", "fp32"), DATA)
    assert run.captures.what == "steps"
    group = run.optimizer.param_groups[0]
    for step in range(4):
        train_step(run, step)
        assert float(group["lr"]) == pytest.approx(0.01 * (step + 1) / 9)
        assert float(group["rho"]) == pytest.approx(0.05 * (step + 1) / 9)
    held = group["lr"], group["rho"]
    assert all(value.is_cuda for value in held)
    load_state_dict(run, state_dict(run, 3))  # which puts copies into the groups
    for step in range(4, 7):
        train_step(run, step)
    group = run.optimizer.param_groups[0]
    assert (group["lr"] is held[0], group["rho"] is held[1]) == (True, True)
    before = copy.deepcopy(dict(run.trained.named_parameters()))
    run.rates.lr = 0.0
    train_step(run, 7)
    torch.testing.assert_close(dict(run.trained.named_parameters()), before, rtol=0, atol=0)


def test_steps_of_two_kinds() -> None:
    same_after(12, optimizer="mecam", virtual="none", optimizer_settings={"every": 3, "start": 3})
    same_after(12, optimizer="sam", optimizer_settings={"every": 3})


@pytest.mark.parametrize("optimizer", [*sorted(HOST - {"dgsam"}), "mecam", "adam"])  # DGSAM's passes differ
def test_captured_passes(optimizer: str) -> None:
    same_after(5, "passes", optimizer=optimizer, virtual="none")


@pytest.mark.parametrize("method", sorted(set(METHODS) - set(CAPTURABLE)))
def test_every_other_method_takes_steps_on_a_gpu(method: str) -> None:
    run = run_of(captures="nothing", method=method)
    for step in range(3):
        train_step(run, step)
    assert all(value.isfinite().all() for value in run.trained.state_dict().values())


def test_frozen_batch_norm_and_dropout() -> None:
    same_after(5, optimizer="mecam", virtual="none", freeze_bn=True, dropout=0.3)


@pytest.mark.parametrize("backbone", ["resnet18", "lite0"])
def test_folding_changes_nothing_but_rounding(backbone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the median of five steps: now and then rounding puts a value across an activation's kink, and counts more."""
    values = {"optimizer": "sgd", "backbone": backbone, "freeze_bn": True, "pretrained": False, "image_size": 64}
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    errors = []
    for seed in range(5):
        folded, plain = run_of(captures="nothing", seed=seed, **values), run_of(captures="nothing", seed=seed, **values)
        fold_frozen(folded.network)
        before = copy.deepcopy(plain.trained.state_dict())
        for run in (folded, plain):
            train_step(run, 0)
        errors.append(departure(folded.trained.state_dict(), plain.trained.state_dict(), before))
    assert statistics.median(errors) <= 5e-3, errors


def departure(found: Weights, expected: Weights, before: Weights) -> float:
    """How far the found weights are from the expected ones, of how far these moved; the worst of all tensors."""
    moved = {name: (value.double() - before[name].double()).norm() for name, value in expected.items()}
    apart = {name: (value.double() - found[name].double()).norm() for name, value in expected.items()}
    return max(float((apart[name] - 1e-7).clamp(min=0) / moved[name].clamp(min=1e-30)) for name in expected)


def test_replays_advance_a_generator() -> None:
    eager, replayed = (torch.Generator("cuda").manual_seed(3) for _ in range(2))
    captured = Captured(lambda x: x + torch.rand(5, device="cuda", generator=replayed), [replayed])
    for number in range(5):
        x = torch.full((5,), float(number), device="cuda")
        torch.testing.assert_close(captured(x), x + torch.rand(5, device="cuda", generator=eager), rtol=0, atol=0)
    assert torch.equal(eager.get_state(), replayed.get_state())


def test_only_tensors_may_change() -> None:
    captured = Captured(lambda x, factor: x * factor)
    x = torch.ones(3, device="cuda")
    for _ in range(2):
        captured(x, 2)
    with pytest.raises(ValueError, match="only tensors may change"):
        captured(x, 3)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("backbone", ["resnet8", "lite0"])
def test_deterministic_runs_repeat(tmp_path: Path, precision: str, backbone: str) -> None:
    values = {
        "target": "art",
        "batch": 4,
        "steps": 6,
        "evaluate_every": 3,
        "optimizer": "mecam",
        "deterministic": True,
        "precision": precision,
        "backbone": backbone,
        "pretrained": False,
    }
    files = [
        train(Recipe(**values), tmp_path / name, device="cuda", data=DATA).path / "model.safetensors" for name in "ab"
    ]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_non_finite_steps_are_reported(tmp_path: Path) -> None:
    values = {
        "target": "art",
        "batch": 4,
        "steps": 10,
        "evaluate_every": 5,
        "optimizer": "mecam",
        "base": "sgd",
        "optimizer_settings": {"rho": 1e38},
    }
    with pytest.raises(FloatingPointError, match=r"step \d of .*not finite; that step was not taken"):
        train(Recipe(**values), tmp_path, device="cuda", data=DATA)
