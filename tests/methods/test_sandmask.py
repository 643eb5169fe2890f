"""SAND-mask, entry by entry; its limits; the public default, which learns nothing."""

import math
import statistics

import pytest
import torch
from torch.nn import functional as F

from mecam.methods.andmask import ANDMask
from mecam.methods.base import Batch
from mecam.methods.sandmask import SANDMask
from mecam.models.network import Network


def by_hand(column: list[float], tau: float, k: float) -> float:
    agreement = abs(sum((g > 0) - (g < 0) for g in column)) / len(column)
    return max(0.0, math.tanh(k / statistics.variance(column) * (agreement - tau)))


@pytest.mark.parametrize(("tau", "k"), [(0.5, 0.1), (0.2, 1.0), (0.0, 0.3)])
def test_the_mask_is_the_formula(tau: float, k: float) -> None:
    gradients = torch.randn(4, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = SANDMask(tau=tau, k=k).mask(gradients)
    expected = [by_hand(column, tau, k) for column in gradients.flatten(1).T.tolist()]
    assert mask.shape == (5, 3)
    torch.testing.assert_close(mask.flatten().tolist(), expected, rtol=1e-12, atol=0)
    assert any(0.01 < value < 0.99 for value in expected)  # soft, not a switch


def test_the_gradient_is_masked_and_scaled_by_the_mean_of_the_mask(network: Network, batch: Batch) -> None:
    weights = list(network.parameters())
    logits = network(batch.images).chunk(batch.domains)
    losses = [F.cross_entropy(of, to) for of, to in zip(logits, batch.labels.chunk(batch.domains), strict=True)]
    each = [torch.autograd.grad(loss, weights, retain_graph=True) for loss in losses]
    SANDMask(k=1e-3).gradient(network, batch, None, None)
    for weight, of_domains in zip(weights, zip(*each, strict=True), strict=True):
        columns = torch.stack(of_domains).flatten(1).T.tolist()
        masks = [by_hand(column, 0.5, 1e-3) for column in columns]
        scale = statistics.fmean(masks) + 1e-10
        expected = [m * statistics.fmean(c) / scale for m, c in zip(masks, columns, strict=True)]
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad.flatten().tolist(), expected, rtol=1e-9, atol=1e-12)
    assert all((layer.weight.grad != 0).any() for layer in (network.head, network.featurizer.stem[0]))  # type: ignore


def test_a_steep_mask_is_and_masks() -> None:
    gradients = torch.randn(5, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(SANDMask(tau=0.5, k=1e9).mask(gradients), ANDMask(tau=0.5).mask(gradients))


def test_equal_gradients_a_single_domain_and_none_at_all_are_no_trouble() -> None:
    row = torch.tensor([[1e-3, -2.0, 0.0]])
    for gradients in (row, row.expand(3, 3), 1e-12 * row):
        assert SANDMask().mask(gradients).tolist() == [1.0, 1.0, 0.0]
        assert SANDMask(tau=0).mask(gradients).tolist() == [1.0, 1.0, 0.0]  # 0/0 in the public code


def test_the_order_of_domains_is_nothing() -> None:
    gradients = torch.randn(3, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(SANDMask(k=0.1).mask(gradients), SANDMask(k=0.1).mask(gradients[[2, 0, 1]]))


def test_a_tau_of_one_which_never_learns_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tau=1.0 is not allowed"):
        SANDMask(tau=1.0)
    gradients, method = (
        torch.ones(3, 4) + 0.1 * torch.rand(3, 4, generator=torch.Generator().manual_seed(0)),
        SANDMask(),
    )
    assert (method.mask(gradients) > 0).all()
    method.tau = 1.0  # type: ignore[assignment]
    assert (method.mask(gradients) == 0).all()
