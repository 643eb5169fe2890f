"""An independent world to check the optimizers in: a small float64 network as a function of one flat vector.

Nothing here uses mecam: gradients come from plain autograd on the flat vector, and formulas are written on it.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def network(seed: int = 1, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)


def batch(seed: int = 2, size: int = 12) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    return torch.randn(size, 5, dtype=torch.float64), torch.randint(0, 3, (size,))


def flatten(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors]).clone()


def loss_at(theta: Tensor, x: Tensor, y: Tensor, tilt: float = 0.0) -> Tensor:
    """The network's loss at flat weights; `tilt` turns it into another function, as a virtual domain does."""
    w1, b1, w2, b2 = theta.split([35, 7, 21, 3])
    hidden = torch.tanh(x @ w1.view(7, 5).T + b1) * (1 + tilt)
    return F.cross_entropy(hidden @ w2.view(3, 7).T + b2, y)


def gradient(theta: Tensor, x: Tensor, y: Tensor, tilt: float = 0.0) -> Tensor:
    leaf = theta.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss_at(leaf, x, y, tilt), leaf)
    return found


class Tilt:
    """A virtual domain for `network`: scales the hidden layer while active, as `loss_at(tilt=...)` does."""

    def __init__(self, model: nn.Sequential, tilt: float) -> None:
        self.on = False
        model[1].register_forward_hook(lambda _m, _i, output: output * (1 + tilt) if self.on else None)

    def active(self) -> "Tilt":
        return self

    def __enter__(self) -> None:
        self.on = True

    def __exit__(self, *_: object) -> None:
        self.on = False


def closure_for(optimizer: torch.optim.Optimizer, model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return closure
