"""A toy problem, and the loop that a framework's run must equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from mecam.optim import SharpnessAware

SIZE, BATCHES = 4, 7
Batch = Sequence[Tensor]


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)


def dataset(dtype: torch.dtype = torch.float64) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SIZE * BATCHES, 6, generator=generator, dtype=torch.float64).to(dtype)
    return TensorDataset(inputs, torch.randint(0, 3, (SIZE * BATCHES,), generator=generator))


def loader(dtype: torch.dtype = torch.float64, size: int = SIZE) -> DataLoader[Any]:
    return DataLoader(dataset(dtype), batch_size=size)


def sgd(method: type[SharpnessAware], model: nn.Module, **options: Any) -> Any:
    return method(model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9, rho=0.2, model=model, **options)


def take_step(
    model: nn.Module, optimizer: SharpnessAware, micro_batches: Sequence[Batch], *, bf16: bool = False
) -> Tensor:
    """Take a step on the mean of the micro-batches' losses; return the loss."""

    def closure() -> Tensor:
        optimizer.zero_grad()
        losses = []
        for x, y in micro_batches:
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = F.cross_entropy(model(x), y) / len(micro_batches)
            loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    loss: Tensor = optimizer.step(closure)
    return loss


def train(
    model: nn.Module,
    optimizer: SharpnessAware,
    batches: Sequence[Batch],
    epochs: int = 2,
    window: int = 1,
    bf16: bool = False,
) -> list[Tensor]:
    """Run the loop without any framework; return the losses. `window` is the number of micro-batches per step."""
    windows = [batches[start : start + window] for start in range(0, len(batches), window)]
    return [take_step(model, optimizer, micro_batches, bf16=bf16) for micro_batches in windows * epochs]


def plain(method: type[SharpnessAware], epochs: int = 2, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    """Return the network after the loop with `sgd`."""
    model = network(dtype)
    train(model, sgd(method, model, **options), list(loader(dtype)), epochs)
    return model


def assert_close(one: nn.Module, two: nn.Module, bound: float = 1e-10) -> None:
    """Compare weights and batch-norm statistics."""
    expected = list(two.state_dict().values())
    assert len(one.state_dict()) == len(expected)
    for (name, tensor), other in zip(one.state_dict().items(), expected, strict=True):
        torch.testing.assert_close(tensor, other, rtol=0, atol=bound, msg=name)
