"""VREx against the variance written out."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.methods import Batch, Setting
from mecam.methods.vrex import VREx
from mecam.models.network import Network


def expected(network: Network, batch: Batch, weight: float) -> Tensor:
    logits = network(batch.images).chunk(batch.domains)
    losses = [F.cross_entropy(own, y) for own, y in zip(logits, batch.labels.chunk(batch.domains), strict=True)]
    mean = sum(losses) / len(losses)
    return torch.as_tensor(mean + weight * sum((loss - mean) ** 2 for loss in losses) / len(losses))


@pytest.mark.parametrize("each", [6, 1])
@pytest.mark.parametrize(("step", "weight"), [(0, 1.0), (499, 1.0), (500, 60.0)])
def test_loss_and_gradient(
    network: Network, make_batch: Callable[..., Batch], setting: Setting, each: int, step: int, weight: float
) -> None:
    batch = make_batch(each=each, step=step)
    method = VREx(lam=60.0)
    method.build(network, setting)
    loss, _ = method.loss(network, batch, None, None)
    other = expected(network, batch, weight)
    torch.testing.assert_close(loss, other, rtol=1e-10, atol=0)
    weights = list(network.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(loss, weights), torch.autograd.grad(other, weights), rtol=1e-10, atol=1e-12
    )


def test_identical_domains_have_no_penalty(
    network: Network, make_batch: Callable[..., Batch], setting: Setting
) -> None:
    one = make_batch(domains=1)
    same = Batch(one.images.repeat(3, 1, 1, 1), one.labels.repeat(3), 3, step=4000)
    method = VREx(lam=1e4)
    method.build(network, setting)
    loss, _ = method.loss(network, same, None, None)
    torch.testing.assert_close(loss, F.cross_entropy(network(same.images), same.labels), rtol=1e-10, atol=0)


def test_the_order_of_domains_does_not_matter(network: Network, batch: Batch, setting: Setting) -> None:
    method = VREx()
    method.build(network, setting)
    order = torch.arange(18).view(3, 6)[[2, 0, 1]].flatten()
    loss, _ = method.loss(network, Batch(batch.images, batch.labels, 3, 900), None, None)
    other, _ = method.loss(network, Batch(batch.images[order], batch.labels[order], 3, 900), None, None)
    torch.testing.assert_close(loss, other, rtol=1e-10, atol=0)


def test_the_optimizer_starts_anew_once(network: Network, setting: Setting) -> None:
    method = VREx(anneal=120)
    method.build(network, setting)
    assert [step for step in range(setting.steps) if method.restarts(step)] == [120]
    method = VREx(anneal=0)
    method.build(network, setting)
    assert not method.restarts(0)
