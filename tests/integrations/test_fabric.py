"""Under Lightning's Fabric a run is the plain loop."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.optim import FSAM, SAM, MeCAM
from tests.integrations.loops import assert_close, loader, network, plain, sgd
from tests.integrations.loops import train as run_by_hand

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from lightning.fabric import Fabric


def train(fabric: Fabric, model: Any, optimizer: Any, dtype: torch.dtype = torch.float64, epochs: int = 2) -> None:
    for x, y in list(fabric.setup_dataloaders(loader(dtype))) * epochs:

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            fabric.backward(loss)
            return loss

        optimizer.step(closure)


def prepared(method: Any, dtype: torch.dtype = torch.float64, **options: Any) -> tuple[Fabric, Any, Any]:
    fabric = Fabric(accelerator="cpu", devices=1, **options)
    model = network(dtype)
    return fabric, *fabric.setup(model, sgd(method, model))


@pytest.mark.works_with(
    "Fabric", "setup, backward, step(closure): updates equal the plain loop's", packages=["lightning"]
)
@pytest.mark.parametrize("method", [SAM, MeCAM, FSAM])
def test_a_run_is_the_plain_loop(method: Any) -> None:
    fabric, model, optimizer = prepared(method)
    train(fabric, model, optimizer)
    assert_close(model.module, plain(method))


@pytest.mark.works_with("Fabric", "bf16-mixed", packages=["lightning"])
def test_bf16() -> None:
    fabric, model, optimizer = prepared(MeCAM, torch.float32, precision="bf16-mixed")
    train(fabric, model, optimizer, torch.float32)
    by_hand = network(torch.float32)
    run_by_hand(by_hand, sgd(MeCAM, by_hand), list(loader(torch.float32)), bf16=True)
    assert_close(model.module, by_hand, 1e-6)


@pytest.mark.works_with("Fabric", "save and load: ends as an uninterrupted run", packages=["lightning"])
def test_resuming(tmp_path: Path) -> None:
    fabric, model, optimizer = prepared(FSAM)
    train(fabric, model, optimizer, epochs=1)
    fabric.save(tmp_path / "state.ckpt", {"model": model, "optimizer": optimizer})
    fabric, model, optimizer = prepared(FSAM)
    fabric.load(tmp_path / "state.ckpt", {"model": model, "optimizer": optimizer})
    train(fabric, model, optimizer, epochs=1)
    assert_close(model.module, plain(FSAM))
