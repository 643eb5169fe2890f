"""ADRMX against losses written out image by image."""

import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.methods import Batch, Setting
from mecam.methods.adrmx import ADRMX, Disentangled, _contrast
from mecam.models.network import Network
from tests.methods.gradients import assert_same_gradient


def contrast(z: Tensor, labels: Tensor) -> Tensor:
    z = z / z.norm(dim=1, keepdim=True)
    each = []
    for i, label in enumerate(labels):
        others = [j for j in range(len(z)) if j != i]
        whole = torch.log(torch.stack([torch.exp(z[i].dot(z[j]) / 0.07) for j in others]).sum())
        own = [z[i].dot(z[j]) / 0.07 - whole for j in others if labels[j] == label]
        if own:
            each.append(-torch.stack(own).mean())
    return torch.stack(each).mean()


def expected(network: Disentangled, method: ADRMX, batch: Batch, keys: Tensor) -> Tensor:
    pair = network.network.featurizer
    z, s = pair.get_submodule("label")(batch.images), pair.get_submodule("domain")(batch.images)
    u, labels, domains = z - s, batch.labels, batch.domain_labels()
    remix = torch.zeros((), dtype=torch.float64)
    for label in range(3):
        able = [
            i for i in range(len(labels)) if labels[i] == label
            and any(labels[j] == label and domains[j] != domains[i] for j in range(len(labels)))
        ]  # fmt: skip
        if able:
            i = max(able, key=lambda i: float(keys[0][i]))
            partners = [j for j in range(len(labels)) if labels[j] == label and domains[j] != domains[i]]
            j = max(partners, key=lambda j: float(keys[1][j]))
            remix = remix + F.cross_entropy(network.label_head(u[i] + s[j]), labels[i])
    return (
        F.cross_entropy(network.label_head(z), labels)
        + F.cross_entropy(network.difference_head(u), labels)
        + 0.9 * F.cross_entropy(network.domain_head(s), domains)
        + 1.1 * (contrast(z, labels) + contrast(u, labels))
        + 1.3 * remix / 3
        - 0.7 * F.cross_entropy(method.discriminator.module(u), domains)
    )


def test_loss_and_gradient(network: Network, batch: Batch, setting: Setting) -> None:
    batch.labels[batch.labels == 2] = 1
    batch.labels[0] = 2  # no partner in another domain
    method = ADRMX(lam=0.7, contrast=1.1, remix=1.3, domain=0.9, width=5, depth=3)
    built = method.build(network, setting)
    assert isinstance(built, Disentangled)
    generator = torch.Generator().manual_seed(0)
    for parameter in network.featurizer.get_submodule("domain").parameters():
        parameter.data += 0.1 * torch.randn(
            parameter.shape, generator=generator, dtype=torch.float64
        )  # no longer equal
    keys = method.draw(batch, generator)
    loss, _ = method.loss(built, batch, keys, None)
    assert_same_gradient(built, loss, expected(built, method, batch, keys), rtol=1e-7)
    z = network.featurizer.get_submodule("label")(batch.images)
    torch.testing.assert_close(built(batch.images), built.label_head(z))


def test_turns() -> None:
    assert [ADRMX(k=2).declines(step) for step in range(6)] == [True, False, True, True, False, True]


def test_the_contrast_has_second_derivatives_where_the_difference_is_zero() -> None:
    """At the start both featurizers are equal, and AdaHessian differentiates twice."""
    z = torch.zeros(4, 5, dtype=torch.float64)
    z[2:] = torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z.requires_grad_()
    loss = _contrast(z, torch.tensor([0, 1, 0, 1]))
    (slope,) = torch.autograd.grad(loss, z, create_graph=True)
    (second,) = torch.autograd.grad(slope.square().sum(), z)
    assert slope.isfinite().all()
    assert second.isfinite().all()
    assert slope[2:].any()
