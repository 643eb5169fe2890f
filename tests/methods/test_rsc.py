"""RSC against autograd and NumPy's percentiles."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.methods import Batch
from mecam.methods.rsc import RSC
from mecam.models.network import Network
from tests.methods.gradients import assert_same_gradient


def kept(network: Network, z: Tensor, labels: Tensor, feature_drop: float, batch_drop: float) -> list[list[float]]:
    """The mask, an image at a time."""
    leaf = z.detach().requires_grad_()
    logits = network.head(leaf)
    (g,) = torch.autograd.grad(sum(row[y] for row, y in zip(logits, labels, strict=True)), leaf)
    masks, changes = [], []
    for row, own, y in zip(g.numpy(), z.detach(), labels, strict=True):
        mask = (row < np.percentile(row, 100 * (1 - feature_drop))).astype(float)
        muted = network.head(own * torch.from_numpy(mask)).softmax(0)[y]
        changes.append((network.head(own).softmax(0)[y] - muted).item())
        masks.append(mask.tolist())
    border = np.percentile(changes, 100 * (1 - batch_drop))
    return [[1.0] * len(m) if c < border else m for m, c in zip(masks, changes, strict=True)]


@pytest.mark.parametrize(
    ("feature_drop", "batch_drop"), [(1 / 3, 1 / 3), (0.5, 0.1), (0.05, 0.5), (0.0, 0.0), (0.3, 1)]
)
@pytest.mark.parametrize("each", [6, 1])
def test_loss_and_gradient(
    network: Network, make_batch: Callable[..., Batch], feature_drop: float, batch_drop: float, each: int
) -> None:
    batch = make_batch(each=each)
    loss, _ = RSC(feature_drop=feature_drop, batch_drop=batch_drop).loss(network, batch, None, None)
    z = network.features(batch.images)
    mask = torch.tensor(kept(network, z, batch.labels, feature_drop, batch_drop), dtype=torch.float64)
    other = F.cross_entropy(network.head(z * mask), batch.labels)
    assert_same_gradient(network, loss, other)


def test_a_third_of_the_features_is_muted_in_a_third_of_the_images(network: Network, batch: Batch) -> None:
    z = network.features(batch.images)
    mask = RSC()._kept(network.head, z, batch.labels)
    assert mask.shape == z.shape
    muted = (~mask).sum(1)
    assert sorted(muted.tolist()) == [0] * 12 + [2] * 6


def test_everything_learns(network: Network, batch: Batch) -> None:
    RSC().gradient(network, batch, None, None)
    assert all(p.grad is not None and p.grad.abs().max() > 1e-6 for p in network.parameters())


def test_one_dropout_for_the_mask_and_the_loss(make_network: Callable[..., Network], batch: Batch) -> None:
    network = make_network(dropout=0.5)
    torch.manual_seed(0)
    loss, _ = RSC().loss(network, batch, None, None)
    torch.manual_seed(0)
    z = network.features(batch.images)
    mask = torch.tensor(kept(network, z, batch.labels, 1 / 3, 1 / 3), dtype=torch.float64)
    torch.testing.assert_close(loss, F.cross_entropy(network.head(z * mask), batch.labels), rtol=1e-10, atol=0)
