"""Optimizers that others wrote, as bases: updates equal the plain optimizer's where the gradient is left as it is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import mecam
from mecam.optim import SAM, MeCAM

mecam.repair_torchvision()
timm = pytest.importorskip("timm.optim")
others = pytest.importorskip("pytorch_optimizer")

INPUTS, LABELS = torch.randn(12, 6, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 3
REFUSED = {
    "adalomo": "AdaLOMO cannot be the base optimizer: it updates the weights inside backward",
    "adahessian": "Adahessian cannot be the base optimizer: it differentiates the gradient inside its step",
    "alig": "AliG cannot be the base optimizer: its step needs the loss",
    "bsam": "BSAM cannot be the base optimizer: it is sharpness-aware itself",
    "lbfgs": "LBFGS cannot be the base optimizer: it runs the closure itself",
    "lomo": "LOMO cannot be the base optimizer: it updates the weights inside backward",
    "sparseadam": "SparseAdam cannot be the base optimizer: sparse gradients are not supported",
}
SETTINGS: dict[str, dict[str, Any]] = {
    "adammini": {"num_embeds": 6, "num_heads": 2},
    "bsam": {"num_data": 12},
    "ranger21": {"num_iterations": 10},
}
WHOLE_MODEL = ("adalomo", "adammini", "lomo")  # built from a model instead of parameters
MATRICES_ONLY = ("torch muon", "pytorch_optimizer spectralsphere")
BY_GROUP = [f"pytorch_optimizer {name}" for name in ("adago", "adamuon", "muon", "muonclip", "normuon")]
IN_A_GROUP = ("demo", "distributedmuon")  # of processes


def libraries() -> Iterator[tuple[str, Callable[..., torch.optim.Optimizer]]]:
    for name, value in vars(torch.optim).items():
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer:
            yield f"torch {name.lower()}", value
    for name in others.get_supported_optimizers():
        if name not in IN_A_GROUP:
            yield f"pytorch_optimizer {name}", others.load_optimizer(name)
    for name in timm.list_optimizers(exclude_filters=["bnb*", "fused*"]):  # which need a GPU
        yield f"timm {name}", timm.get_optimizer_class(name)


BASES = dict(libraries())


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    bias = name not in MATRICES_ONLY
    return nn.Sequential(nn.Linear(6, 8, bias=bias), nn.Tanh(), nn.Linear(8, 3, bias=bias))


def parameters(name: str, model: nn.Module) -> Any:
    if name not in BY_GROUP:
        return list(model.parameters())
    kinds = {matrix: [p for p in model.parameters() if (p.dim() == 2) is matrix] for matrix in (True, False)}
    return [{"params": params, "use_muon": matrix} for matrix, params in kinds.items()]


def build(name: str, model: nn.Module, params: Any) -> torch.optim.Optimizer:
    base, short = BASES[name], name.rpartition(" ")[2]
    settings: dict[str, Any] = {"lr": 1e-3, **SETTINGS.get(short, {})}
    if name.startswith("timm ") and any(word in short for word in ("sgd", "nesterov", "nlar")):
        settings["momentum"] = 0.9
    return base(model if short in WHOLE_MODEL else params, **settings)


def train(name: str, wrap: Callable[..., Any] | None = None) -> Tensor:
    """Return the weights after two steps."""
    model = network(name)
    params = parameters(name, model)
    optimizer = build(name, model, params) if wrap is None else wrap(params, lambda p: build(name, model, p))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(INPUTS), LABELS)
        loss.backward(create_graph=getattr(optimizer, "needs_graph", False))
        return loss

    torch.manual_seed(3)
    for _ in range(2):
        optimizer.step(closure)
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.works_with(
    "base optimizers",
    "every optimizer of torch, pytorch_optimizer and timm that a CPU runs, below SAM and MeCAM: two steps equal the "
    "plain optimizer's where rho, or alpha and beta, are 0",
    packages=["torch", "pytorch_optimizer", "timm"],
)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BASES)
def test_a_base_of_any_library(name: str, record_property: Callable[[str, object], None]) -> None:
    short = name.rpartition(" ")[2]
    if short in REFUSED and name != "pytorch_optimizer adahessian":
        record_property("outcome", "refused")
        with pytest.raises(ValueError, match=REFUSED[short]):
            train(name, SAM)
        return
    compared = short not in ("adahessian", "sophiah")  # to which plain loops pass an estimate of the Hessian
    record_property("outcome", "equal" if compared else "trained, not compared")
    if compared:
        plain = train(name)
        assert torch.equal(train(name, lambda params, base: SAM(params, base, rho=0.0)), plain)
        assert torch.equal(train(name, lambda params, base: MeCAM(params, base, alpha=0.0, beta=0.0)), plain)
    assert train(name, SAM).isfinite().all()


def test_there_are_enough() -> None:
    assert len(BASES) >= 150


@cache
def torch_inputs() -> Any:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.optim.torch_inputs"], cwd=root, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.works_with(
    "torch.optim",
    "torch's own test inputs for its optimizers, below SAM and MeCAM: updates equal the plain optimizer's where rho, "
    "or alpha and beta, are 0; maximize, LBFGS and SparseAdam are refused",
    packages=["torch"],
)
@pytest.mark.parametrize("method", ["SAM", "MeCAM"])
def test_torchs_own_inputs(method: str, record_property: Callable[[str, object], None]) -> None:
    pytest.importorskip("expecttest")
    counts = {"equal": 0, "refused": 0}
    for optimizer, outcomes in torch_inputs()[method].items():
        for outcome, count in outcomes.items():
            refused = "cannot be the base optimizer" in outcome or "maximize=True would perturb" in outcome
            assert refused or outcome == "equal", f"{optimizer}: {outcome}"
            counts["refused" if refused else "equal"] += count
    assert counts["equal"] > 100
    record_property("counts", json.dumps(counts))
