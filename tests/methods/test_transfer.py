"""Transfer against a head trained by torch's own SGD."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.methods import Batch, Setting
from mecam.methods.transfer import Transfer
from mecam.models.network import Network
from tests.methods.gradients import assert_same_gradient


def gap(head: nn.Module, z: Tensor, batch: Batch) -> Tensor:
    parts = zip(z.chunk(batch.domains), batch.labels.chunk(batch.domains), strict=True)
    losses = torch.stack([F.cross_entropy(head(x), y) for x, y in parts])
    return losses.max() - losses.min()


def ascended(network: Network, batch: Batch, *, k: int, lr: float, lam: float, delta: float) -> nn.Module:
    head, z = copy.deepcopy(network.head), network.features(batch.images).detach()
    sgd = torch.optim.SGD(head.parameters(), lr=lr, maximize=True)
    for _ in range(k):
        sgd.zero_grad()
        (lam * gap(head, z, batch)).backward()  # type: ignore[no-untyped-call]
        sgd.step()
        pairs = list(zip(head.parameters(), network.head.parameters(), strict=True))
        distance = float(torch.cat([(a - b).detach().flatten() for a, b in pairs]).norm())
        for a, b in pairs:
            a.data = b.data + min(delta / distance, 1) * (a.data - b.data)
    return head


def test_the_difference_is_that_of_a_head_at_the_edge_of_the_ball(
    network: Network, batch: Batch, setting: Setting
) -> None:
    for delta, lr in ((0.05, 0.3), (2.0, 0.01)):  # inside, and at the edge
        method = Transfer(lam=0.6, delta=delta, k=4, ascent_lr=lr)
        method.build(network, setting)
        loss, state = method.loss(network, batch, None, method.initial_state())
        z = network.features(batch.images)
        classified = F.cross_entropy(network.head(z), batch.labels)
        assert_same_gradient(network.featurizer, loss, classified + 0.6 * gap(copy.deepcopy(network.head), z, batch))
        head = ascended(network, batch, k=4, lr=lr, lam=0.6, delta=delta)
        again, _ = method.loss(network, batch, None, state)
        z = network.features(batch.images)
        expected = F.cross_entropy(network.head(z), batch.labels) + 0.6 * gap(head, z, batch)
        assert_same_gradient(network, again, expected, rtol=1e-8)
