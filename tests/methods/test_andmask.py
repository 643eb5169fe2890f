"""AND-mask's gradient, entry by entry, and what makes it zero."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from mecam.methods.andmask import ANDMask
from mecam.methods.base import Batch
from mecam.models.network import Network


def gradients_of(network: Network, batch: Batch) -> list[list[torch.Tensor]]:
    """For each weight its gradient in each domain, each by a backward of its own through the batch's forward."""
    logits = network(batch.images).chunk(batch.domains)
    each = []
    for of_domain, labels in zip(logits, batch.labels.chunk(batch.domains), strict=True):
        network.zero_grad()
        F.cross_entropy(of_domain, labels).backward(retain_graph=True)  # type: ignore[no-untyped-call]
        each.append([p.grad.clone() for p in network.parameters() if p.grad is not None])
    network.zero_grad()
    return [list(of_weight) for of_weight in zip(*each, strict=True)]


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("frozen", [False, True])
def test_entries_count_where_enough_signs_agree(network: Network, batch: Batch, tau: float, frozen: bool) -> None:
    if frozen:
        network.eval()
    expected = gradients_of(network, batch)
    loss, _ = ANDMask(tau=tau).gradient(network, batch, None, None)
    torch.testing.assert_close(loss, F.cross_entropy(network(batch.images), batch.labels), rtol=1e-12, atol=0)
    for parameter, each in zip(network.parameters(), expected, strict=True):
        assert parameter.grad is not None
        columns = torch.stack(each).flatten(1).T.tolist()
        agreed = [abs(sum((g > 0) - (g < 0) for g in column)) / len(column) >= tau for column in columns]
        share = sum(agreed) / len(agreed)
        by_hand = [
            sum(c) / len(c) / (share + 1e-10) if counts else 0.0 for c, counts in zip(columns, agreed, strict=True)
        ]
        torch.testing.assert_close(parameter.grad.flatten().tolist(), by_hand, rtol=1e-10, atol=1e-15)


def test_one_domain_and_equal_domains_give_its_gradient(network: Network, make_batch: Callable[..., Batch]) -> None:
    one = make_batch(domains=1)
    both = Batch(torch.cat([one.images] * 2), torch.cat([one.labels] * 2), 2)
    F.cross_entropy(network(one.images), one.labels).backward()  # type: ignore[no-untyped-call]
    expected = [p.grad.clone() for p in network.parameters() if p.grad is not None]
    for batch in (one, both):
        ANDMask().gradient(network, batch, None, None)
        for parameter, gradient in zip(network.parameters(), expected, strict=True):
            assert parameter.grad is not None
            share = (gradient != 0).double().mean()
            torch.testing.assert_close(parameter.grad, gradient / share, rtol=1e-8, atol=1e-12)


def test_domains_that_disagree_everywhere_leave_nothing(network: Network, make_batch: Callable[..., Batch]) -> None:
    """Two classes of a head with equal weights: each domain pushes the logits where the other pulls them."""
    one = make_batch(domains=1)
    with torch.no_grad():
        network.head.weight.zero_()
        network.head.bias.zero_()
    network.head.weight.data, network.head.bias.data = network.head.weight.data[:2], network.head.bias.data[:2]
    labels = torch.zeros_like(one.labels)
    batch = Batch(torch.cat([one.images] * 2), torch.cat([labels, 1 - labels]), 2)
    ANDMask().gradient(network, batch, None, None)
    for parameter in network.parameters():
        assert parameter.grad is not None
        assert (parameter.grad == 0).all()


def test_what_is_frozen_gets_no_gradient_and_the_order_of_domains_is_nothing(network: Network, batch: Batch) -> None:
    network.featurizer.requires_grad_(False)
    ANDMask(tau=0.6).gradient(network, batch, None, None)
    assert all(p.grad is None for p in network.featurizer.parameters())
    first = network.head.weight.grad
    assert first is not None
    images, labels = batch.images.chunk(3), batch.labels.chunk(3)
    turned = Batch(torch.cat([images[i] for i in (2, 0, 1)]), torch.cat([labels[i] for i in (2, 0, 1)]), 3)
    ANDMask(tau=0.6).gradient(network, turned, None, None)
    torch.testing.assert_close(network.head.weight.grad, first, rtol=1e-9, atol=1e-12)


def test_batch_norm_sees_the_step_once(make_network: Callable[..., Network], batch: Batch) -> None:
    plain, masked = make_network(), make_network()
    plain(batch.images)
    ANDMask().gradient(masked, batch, None, None)
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(dict(masked.named_buffers())[name], buffer, rtol=0, atol=0)
