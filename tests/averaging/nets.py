"""Models to average: one weight under the test's control, and a small network with batch norm."""

import torch
from torch import nn


class OneWeight(nn.Module):
    """A model that is one number."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=dtype))

    def set(self, value: float) -> "OneWeight":
        with torch.no_grad():
            self.w.fill_(value)
        return self


def batch_norm_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, generator: torch.Generator) -> None:
    model.train()
    optimizer.zero_grad()
    x = torch.randn(16, 4, generator=generator)
    nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long()).backward()
    optimizer.step()
