import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.methods.base import Batch, Setting
from mecam.methods.cdann import CDANN, Conditional
from mecam.models.network import Network
from tests.methods.gradients import assert_same_gradient

close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)


def by_hand(network: Network, module: Conditional, batch: Batch, lam: float, gp: float) -> Tensor:
    """CE − λ D with a loop over classes, then over their images."""
    z = network.featurizer(batch.images)
    labels, each = batch.labels.tolist(), len(batch.labels) // batch.domains
    by_class, slopes = [], []
    for label in set(labels):
        told = []
        for i in (i for i, y in enumerate(labels) if y == label):

            def of_domain(v: Tensor, i: int = i) -> Tensor:
                return F.cross_entropy(module.discriminator(v), torch.tensor(i // each))

            seen = z[i] + module.embedding.weight[label]
            told.append(of_domain(seen))
            slopes.append(torch.func.grad(of_domain)(seen).square().sum())
        by_class.append(torch.stack(told).mean())
    penalised = torch.stack(by_class).mean() + gp * torch.stack(slopes).mean()
    return F.cross_entropy(network.head(z), batch.labels) - lam * penalised


def built(network: Network, setting: Setting, gp: float = 0.0) -> tuple[CDANN, Conditional]:
    method = CDANN(lam=0.3, gp=gp, width=5)
    method.build(network, setting)
    module = method.discriminator.module
    assert isinstance(module, Conditional)
    return method, module


@pytest.mark.parametrize("gp", [0.0, 0.7])
@pytest.mark.parametrize("absent", [False, True])
def test_loss_and_its_gradient_equal_the_formula(
    network: Network, batch: Batch, setting: Setting, gp: float, absent: bool
) -> None:
    method, module = built(network, setting, gp)
    if absent:  # class 1 in no image
        batch = replace(batch, labels=batch.labels.where(batch.labels != 1, 2))
    loss, _ = method.loss(network, batch, None, None)
    expected = by_hand(network, module, batch, 0.3, gp)
    assert_same_gradient(network, loss, expected, rtol=1e-9)


def test_weights_of_the_images_sum_to_one(network: Network, batch: Batch, setting: Setting) -> None:
    method, _ = built(network, setting)
    each = torch.ones(len(batch.labels), dtype=torch.float64)
    assert method.mean(each, batch).item() == pytest.approx(1, rel=1e-14)


def test_embedding_and_discriminator_learn_together(
    network: Network, make_batch: Callable[..., Batch], setting: Setting
) -> None:
    method, module = built(network, setting)
    batch = make_batch(step=1)
    batch = replace(batch, labels=batch.labels.where(batch.labels != 1, 2))
    before = copy.deepcopy(module)
    method.after(network, batch, None, None)
    changed = (module.embedding.weight != before.embedding.weight).any(1)
    assert changed.tolist() == [True, False, True]  # a class without images has nothing to learn from
    for old, new in zip(before.discriminator.parameters(), module.discriminator.parameters(), strict=True):
        assert not torch.equal(old, new)


def test_the_main_loss_leaves_no_gradient_in_the_side(network: Network, batch: Batch, setting: Setting) -> None:
    method, module = built(network, setting, gp=0.5)
    method.gradient(network, batch, None, None)
    assert all(p.grad is not None for p in network.parameters())
    assert all(p.grad is None for p in module.parameters())
