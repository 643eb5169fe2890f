"""MLDG against clones of the network and torch's own Adam."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.methods.base import Batch, Setting
from mecam.methods.mldg import MLDG
from mecam.models.network import Network


def slopes(network: Network, images: Tensor, labels: Tensor) -> list[Tensor]:
    network.zero_grad()
    F.cross_entropy(network(images), labels).backward()  # type: ignore[no-untyped-call]
    return [p.grad.clone() for p in network.parameters() if p.grad is not None]


def by_hand(
    network: Network, batch: Batch, pairs: list[tuple[int, int]], beta: float, setting: Setting
) -> list[Tensor]:
    domains = batch.by_domain()
    total = [torch.zeros_like(p) for p in network.parameters()]
    for i, j in pairs:
        clone = deepcopy(network)
        adam = torch.optim.Adam(clone.parameters(), lr=setting.lr, weight_decay=setting.weight_decay)
        train = slopes(clone, *domains[i])
        adam.step()
        test = slopes(clone, *domains[j])
        total = [t + (a + beta * b) / batch.domains for t, a, b in zip(total, train, test, strict=True)]
    return total


@pytest.mark.parametrize(
    ("meta_test", "pairs"),
    [(1, [(2, 1), (0, 1)]), (2, [(2, 0)]), (5, [(2, 0)])],  # of the order 2, 0, 1
)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_the_gradient_of_pairs(
    network: Network, batch: Batch, setting: Setting, meta_test: int, pairs: list[tuple[int, int]], weight_decay: float
) -> None:
    setting = replace(setting, weight_decay=weight_decay)
    method = MLDG(beta=0.7, meta_test=meta_test)
    method.build(network, setting)
    expected = by_hand(network, batch, pairs, 0.7, setting)
    value, state = method.gradient(network, batch, [2, 0, 1], None)
    assert state is None
    assert value.requires_grad is False
    for parameter, gradient in zip(network.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-10, atol=1e-14)


def test_meta_test_domains_are_taken_in_turn(
    network: Network, make_batch: Callable[..., Batch], setting: Setting
) -> None:
    batch, method = make_batch(domains=5), MLDG()
    method.build(network, setting)
    expected = by_hand(network, batch, [(0, 3), (1, 4), (2, 3)], 1.0, setting)
    method.gradient(network, batch, [0, 1, 2, 3, 4], None)
    for parameter, gradient in zip(network.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-10, atol=1e-14)


def test_weights_stay_and_batch_norm_sees_one_plain_pass(
    make_network: Callable[..., Network], batch: Batch, setting: Setting
) -> None:
    network, plain, method = make_network(), make_network(), MLDG(meta_test=1)
    method.build(network, setting)
    value, _ = method.gradient(network, batch, [0, 1, 2], None)
    assert value == F.cross_entropy(plain(batch.images), batch.labels)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(network.state_dict()[name], tensor), name


def test_the_split_follows_the_generator_and_moves_with_the_domains(
    network: Network, batch: Batch, setting: Setting
) -> None:
    method = MLDG(meta_test=1)
    method.build(network, setting)
    draws = [method.draw(batch, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1, 2, 3)]
    assert draws[0] == draws[1]
    assert all(sorted(draw) == [0, 1, 2] for draw in draws)
    assert len({draw[-1] for draw in draws}) > 1
    method.gradient(network, batch, [0, 1, 2], None)
    first = [p.grad for p in network.parameters()]
    order = [1, 2, 0]
    images, labels = batch.images.chunk(3), batch.labels.chunk(3)
    turned = Batch(torch.cat([images[d] for d in order]), torch.cat([labels[d] for d in order]), 3)
    method.gradient(network, turned, [order.index(d) for d in (0, 1, 2)], None)
    for parameter, gradient in zip(network.parameters(), first, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-10, atol=1e-14)
