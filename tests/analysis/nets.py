"""Functions of a few weights, in float64: small networks with their dense Hessians, and quadratics that are known."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.analysis.objective import Objective


class Weights(nn.Module):
    """A model that is its weights: with `quadratic` the loss is any function of them."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(start.double())

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * 0 + self.x


def quadratic(matrix: Tensor, start: Tensor, constant: float = 0.0) -> Objective:
    """f(x) = ½ xᵀAx + constant."""

    def loss(x: Tensor, _: Tensor) -> Tensor:
        return 0.5 * x[0] @ matrix.double() @ x[0] + constant

    batch = (torch.zeros(1, len(start), dtype=torch.float64), torch.zeros(1))
    return Objective(Weights(start), loss, [batch], name="quadratic")


def network(seed: int = 0) -> nn.Sequential:
    """67 weights, smooth."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def data(count: int = 20) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 4, dtype=torch.float64, generator=generator)
    return x, torch.randint(0, 3, (count,), generator=generator)


def objective(seed: int = 0, *, batch: int = 7, count: int = 20) -> Objective:
    x, y = data(count)
    batches = list(zip(torch.split(x, batch), torch.split(y, batch), strict=True))
    return Objective(network(seed), F.cross_entropy, batches, name="random")


def flat(vector: list[Tensor] | list[nn.Parameter]) -> Tensor:
    return torch.cat([part.detach().reshape(-1) for part in vector])


def at(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The loss of `network` as a plain function of its flat weights, layer by layer."""
    w1, b1, w2, b2 = theta[:32].view(8, 4), theta[32:40], theta[40:64].view(3, 8), theta[64:]
    logits = torch.tanh(x @ w1.T + b1) @ w2.T + b2
    return (torch.logsumexp(logits, 1) - logits[torch.arange(len(y)), y]).mean()


def dense_hessian(theta: Tensor) -> Tensor:
    x, y = data()
    hessian: Tensor = torch.func.hessian(lambda t: at(t, x, y))(theta)
    return hessian
