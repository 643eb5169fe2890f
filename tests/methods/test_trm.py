"""TRM against heads trained by SGD and Hessians by autograd."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.methods import Batch, Setting
from mecam.methods.trm import TRM, State
from mecam.models.network import Network
from tests.methods.gradients import assert_same_gradient


def inverse_product(weight: Tensor, bias: Tensor, z: Tensor, y: Tensor, slope: Tensor) -> Tensor:
    """Eleven terms of Σ (1 − H)^k slope, as long as no entry exceeds 10."""

    def loss(flat: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(z, flat.view_as(weight), bias), y)

    hessian = torch.autograd.functional.hessian(loss, weight.flatten())
    term = total = slope.flatten()
    for _ in range(10):
        term = term - hessian @ term
        total = total + term
        if total.abs().max() > 10:
            break
    return total.view_as(weight)


def expected(network: Network, batch: Batch, heads: list[nn.Linear], alpha: Tensor, lam: float) -> Tensor:
    z = network.features(batch.images)
    parts = list(zip(z.chunk(batch.domains), batch.labels.chunk(batch.domains), strict=True))
    terms = []
    for q, head in enumerate(heads):
        sgd = torch.optim.SGD(head.parameters(), lr=0.1)
        own, y = parts[q]
        for _ in range(30):
            sgd.zero_grad()
            F.cross_entropy(head(own.detach()), y).backward()  # type: ignore[no-untyped-call]
            sgd.step()
        risk = sum(alpha[q, p] * F.cross_entropy(head(x), t) for p, (x, t) in enumerate(parts) if p != q)
        (slope,) = torch.autograd.grad(torch.as_tensor(risk), head.weight, retain_graph=True)
        v = inverse_product(head.weight.detach(), head.bias.detach(), own.detach(), y, slope)
        (through,) = torch.autograd.grad(F.cross_entropy(head(own), y), head.weight, create_graph=True)
        terms.append(risk - lam * (v * through).sum())
    return F.cross_entropy(network.head(z), batch.labels) + torch.as_tensor(sum(terms)) / len(heads)


def as_heads(state: State) -> list[nn.Linear]:
    heads = []
    for matrix in state["heads"]:
        head = nn.Linear(matrix.shape[1] - 1, len(matrix)).double()
        head.weight.data, head.bias.data = matrix[:, :-1].clone(), matrix[:, -1].clone()
        heads.append(head)
    return heads


@pytest.mark.parametrize("lam", [0.0, 0.5])
def test_loss_and_gradient(network: Network, make_batch: Callable[..., Batch], setting: Setting, lam: float) -> None:
    method = TRM(lam=lam, anneal=200, eta=0.7)
    method.build(network, setting)
    state, alpha = method.initial_state(), torch.tensor([[0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]]).double()
    for seed in (0, 1):  # the heads continue from the first step, α follows the losses
        batch, heads = make_batch(seed=seed, step=200 + seed), as_heads(state)
        loss, state = method.loss(network, batch, None, state)
        assert_same_gradient(network, loss, expected(network, batch, heads, alpha, lam), rtol=1e-7)
        with torch.no_grad():
            parts = list(zip(network.features(batch.images).chunk(3), batch.labels.chunk(3), strict=True))
            risks = torch.stack([torch.stack([F.cross_entropy(head(x), y) for x, y in parts]) for head in heads])
        alpha = alpha * (0.7 * alpha * risks).exp()
        alpha = alpha / alpha.sum(1, keepdim=True)


def test_the_first_steps_are_erms(network: Network, batch: Batch, setting: Setting) -> None:
    method = TRM()
    method.build(network, setting)
    loss, state = method.loss(network, batch, None, method.initial_state())
    assert_same_gradient(network, loss, F.cross_entropy(network(batch.images), batch.labels))
    assert state is method.initial_state()
