"""VREx against the variance written out."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.methods import Batch, Setting
from mecam.methods.vrex import VREx
from mecam.models.network import Network
from tests.methods.gradients import assert_same_gradient


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
    assert_same_gradient(network, loss, other)


def test_the_optimizer_starts_anew_once(network: Network, setting: Setting) -> None:
    method = VREx(anneal=120)
    method.build(network, setting)
    assert [step for step in range(setting.steps) if method.restarts(step)] == [120]
    method = VREx(anneal=0)
    method.build(network, setting)
    assert not method.restarts(0)
