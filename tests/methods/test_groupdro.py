"""GroupDRO against weights that are multiplied and normalised."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.methods import Batch, Setting
from mecam.methods.groupdro import GroupDRO
from mecam.models.network import Network
from tests.methods.gradients import assert_same_gradient


def built(network: Network, setting: Setting, eta: float) -> GroupDRO:
    method = GroupDRO(eta=eta)
    method.build(network, setting)
    return method


def domain_losses(network: Network, batch: Batch) -> list[Tensor]:
    logits = network(batch.images).chunk(batch.domains)
    return [F.cross_entropy(own, y) for own, y in zip(logits, batch.labels.chunk(batch.domains), strict=True)]


def test_three_steps_equal_the_multiplicative_update(
    network: Network, make_batch: Callable[..., Batch], setting: Setting
) -> None:
    method = built(network, setting, 0.8)
    state, q = method.initial_state(), [1.0, 1.0, 1.0]
    for seed in range(3):
        batch = make_batch(seed)
        losses = domain_losses(network, batch)
        q = [old * math.exp(0.8 * loss.item()) for old, loss in zip(q, losses, strict=True)]
        q = [value / sum(q) for value in q]
        other = torch.stack([share * loss for share, loss in zip(q, losses, strict=True)]).sum()
        before = state.clone()
        loss, following = method.loss(network, batch, None, state)
        assert torch.equal(state, before)
        assert not following.requires_grad
        assert_same_gradient(network, loss, other)
        state = following
    torch.testing.assert_close(state.exp().tolist(), q, rtol=1e-10, atol=0)


def test_one_pass_equals_a_pass_for_each_domain(network: Network, batch: Batch, setting: Setting) -> None:
    network.eval()
    method = built(network, setting, 0.5)
    loss, log_q = method.loss(network, batch, None, method.initial_state())
    losses = torch.stack([F.cross_entropy(network(images), labels) for images, labels in batch.by_domain()])
    torch.testing.assert_close(loss, (log_q.exp() * losses).sum(), rtol=1e-10, atol=0)


def test_the_hardest_domain_takes_all_and_nothing_overflows(network: Network, batch: Batch, setting: Setting) -> None:
    losses = torch.stack(domain_losses(network, batch))
    loss, log_q = built(network, setting, 1e6).loss(network, batch, None, torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(loss, losses.max(), rtol=1e-10, atol=0)
    assert log_q.isfinite().all()


@pytest.mark.parametrize("each", [1, 4])
def test_without_a_rate_it_is_the_mean(
    network: Network, make_batch: Callable[..., Batch], setting: Setting, each: int
) -> None:
    batch = make_batch(each=each)
    method = built(network, setting, 0.0)
    loss, _ = method.loss(network, batch, None, method.initial_state())
    torch.testing.assert_close(loss, F.cross_entropy(network(batch.images), batch.labels), rtol=1e-10, atol=0)
