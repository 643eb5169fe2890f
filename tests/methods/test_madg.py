import copy
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.methods.base import Batch, Setting
from mecam.methods.madg import MADG
from mecam.models.network import Network
from tests.methods.gradients import assert_same_gradient

close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)


def built(network: Network, setting: Setting) -> MADG:
    method = MADG(lam=0.3, margin=0.8)
    method.build(network, setting)
    return method


def by_hand(network: Network, batch: Batch, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy and discrepancy, pair after pair and image after image."""
    z = network.featurizer(batch.images)
    logits = network.head(z)
    each, classes, pairs = len(z) // batch.domains, logits.shape[1], []
    ordered = [(i, j) for i in range(batch.domains) for j in range(batch.domains) if i != j]
    for number, (i, j) in enumerate(ordered):
        rows = slice(number * classes, (number + 1) * classes)

        def probability(n: int, rows: slice = rows) -> Tensor:
            return torch.softmax(weight[rows] @ z[n] + bias[rows], 0)[logits[n].argmax()]

        agree = sum(torch.log(probability(n)) for n in range(i * each, (i + 1) * each))
        disagree = sum(torch.log(1 - probability(n)) for n in range(j * each, (j + 1) * each))
        pairs.append((disagree + math.exp(0.8) * agree) / each)
    return F.cross_entropy(logits, batch.labels), torch.stack([torch.as_tensor(p) for p in pairs]).mean()


def heads(method: MADG) -> tuple[Tensor, Tensor]:
    weight, bias = method.auxiliary.module.parameters()
    return weight, bias


def test_loss_and_its_gradient_equal_the_formula(network: Network, batch: Batch, setting: Setting) -> None:
    method = built(network, setting)
    loss, _ = method.loss(network, batch, None, None)
    classified, discrepancy = by_hand(network, batch, *heads(method))
    expected = classified + 0.3 * discrepancy
    assert_same_gradient(network, loss, expected, rtol=1e-9)


def test_the_auxiliary_heads_go_up_the_discrepancy(network: Network, batch: Batch, setting: Setting) -> None:
    method = built(network, setting)
    before = copy.deepcopy(method.auxiliary.module)
    _, state = method.loss(network, batch, None, None)
    assert all(p.grad is None for p in method.auxiliary.module.parameters())
    assert method.after(network, batch, None, state) is None  # type: ignore[func-returns-value]
    old = list(before.parameters())
    slopes = torch.autograd.grad(by_hand(network, batch, old[0], old[1])[1], old)
    for start, new, g in zip(old, heads(method), slopes, strict=True):
        torch.testing.assert_close(new, start + 0.01 * g / (g.abs() + 1e-8), rtol=1e-7, atol=1e-9)


def test_sure_heads_stay_finite(network: Network, batch: Batch, setting: Setting) -> None:
    method = built(network, setting)
    with torch.no_grad():
        for parameter in heads(method):
            parameter *= 1e4
    value, _ = method.gradient(network, batch, None, None)
    assert value.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


def test_of_two_equal_domains_the_best_head_is_indifferent(
    network: Network, make_batch: Callable[..., Batch], setting: Setting
) -> None:
    """γ log σ + log(1 − σ) is largest at σ = γ / (1 + γ), so a trained h′ gives no gradient to equal domains."""
    method, batch = built(network, setting), make_batch(domains=2, each=4)
    gamma = math.exp(0.8)
    guess = torch.zeros(8, dtype=torch.long)
    best = torch.zeros(8, 2 * 3, dtype=torch.float64)
    best[:, [0, 3]] = math.log(2 * gamma)  # softmax (2γ, 1, 1) / (2 + 2γ)
    best.requires_grad_()
    value = method.discrepancy(best, guess, batch.domains)
    assert value.item() == pytest.approx(gamma * math.log(gamma / (1 + gamma)) + math.log(1 / (1 + gamma)), rel=1e-12)
    slopes = torch.autograd.grad(value, best)[0].view(2, 4, 2, 3).sum(0)  # over both domains, as they are equal
    assert slopes.abs().max() < 1e-12


def test_one_class_is_refused(network: Network) -> None:
    with pytest.raises(ValueError, match="at least 2 classes"):
        MADG().build(network, Setting(classes=1, domains=3, steps=10, lr=0.01))
