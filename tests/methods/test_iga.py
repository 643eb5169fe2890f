"""IGA against the gradients of every domain."""

import torch
from torch import autograd
from torch.nn import functional as F

from mecam.methods import Batch
from mecam.methods.iga import IGA
from mecam.models.network import Network
from tests.methods.gradients import assert_same_gradient


def test_loss_and_gradient(network: Network, batch: Batch) -> None:
    loss, _ = IGA(lam=2.0).loss(network, batch, None, None)
    logits, weights = network(batch.images).chunk(batch.domains), list(network.parameters())
    losses = [F.cross_entropy(own, y) for own, y in zip(logits, batch.labels.chunk(batch.domains), strict=True)]
    flat = [torch.cat([g.flatten() for g in autograd.grad(one, weights, create_graph=True)]) for one in losses]
    mean = torch.stack(losses).mean()
    center = torch.cat([g.flatten() for g in autograd.grad(mean, weights, create_graph=True)])
    expected = mean + 2.0 * sum((g - center).dot(g - center) for g in flat)
    assert_same_gradient(network, loss, expected, rtol=1e-8)
