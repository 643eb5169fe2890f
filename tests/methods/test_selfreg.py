"""SelfReg against its formula on images sorted by class."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.methods import Batch, Setting
from mecam.methods.selfreg import Projected, SelfReg
from mecam.models.network import Backbone, Network
from tests.methods.gradients import assert_same_gradient


@pytest.fixture
def projected(network: Network, setting: Setting) -> Projected:
    module = SelfReg().build(network, setting)
    assert isinstance(module, Projected)
    return module


def expected(module: Projected, batch: Batch, lam: float, second: Tensor, third: Tensor) -> Tensor:
    z = module.network.features(batch.images)
    o, p = module.network.head(z), module.projector(z)
    ce = F.cross_entropy(o, batch.labels)
    total = torch.zeros((), dtype=z.dtype)
    for i, (j, k) in enumerate(zip(second.tolist(), third.tolist(), strict=True)):
        for own, other, weight in ((o, o, 1 / o.numel()), (z, p, 0.3 / z.numel())):
            total = total + weight * lam * ((own[i] - other[j]) ** 2).sum()
            mixed = lam * other[j] + (1 - lam) * other[k]
            total = total + weight * (1 - lam) * ((own[i] - mixed) ** 2).sum()
    return ce + min(ce.item(), 1.0) * total


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_loss_and_gradient(projected: Projected, batch: Batch, scale: float) -> None:
    """With both sides of min(CE, 1)."""
    with torch.no_grad():
        projected.network.head.weight.mul_(scale)
        if scale == 1:
            projected.network.head.bias.add_(torch.tensor([2.0, 0, -2]))
        else:  # every image of class 1, and the head sure of it
            projected.network.head.bias.copy_(torch.tensor([0.0, 3, 0]))
            batch = Batch(batch.images, torch.ones_like(batch.labels), 3)
    draw = SelfReg().draw(batch, torch.Generator().manual_seed(0))
    loss, _ = SelfReg().loss(projected, batch, draw, None)
    assert (F.cross_entropy(projected(batch.images), batch.labels) > 1) == (scale == 1)
    other = expected(projected, batch, *draw)
    assert_same_gradient(projected, loss, other, rtol=1e-9)


@pytest.mark.parametrize("labels", [[0, 2, 2, 0, 0, 2, 1, 2], [1] * 8, [2, 1, 0, 4, 3, 7, 6, 5]])
def test_orders_are_random_within_each_class(labels: list[int]) -> None:
    batch = Batch(torch.zeros(8, 3, 4, 4), torch.tensor(labels), 2)
    orders = set()
    for seed in range(200):
        lam, *both = SelfReg().draw(batch, torch.Generator().manual_seed(seed))
        assert 0 <= lam <= 1
        for order in both:
            assert sorted(order.tolist()) == list(range(8))
            assert torch.equal(batch.labels[order], batch.labels)
            orders.add(tuple(order.tolist()))
    # one image: 1 order, three: 6, four: 24; 400 draws miss few of 144
    assert {3: 115 < len(orders) <= 144, 1: len(orders) > 390, 8: len(orders) == 1}[len(set(labels))]


def test_the_projector_trains_and_does_not_predict(projected: Projected, batch: Batch) -> None:
    draw = SelfReg().draw(batch, torch.Generator().manual_seed(0))
    SelfReg().gradient(projected, batch, draw, None)
    still = {n for n, p in projected.named_parameters() if p.grad is None or p.grad.abs().max() < 1e-12}
    # batch norm takes away what a bias before it adds
    assert still == {f"projector.{n}.bias" for n in (0, 3, 6)}
    projected.eval()
    before = projected(batch.images)
    with torch.no_grad():
        for parameter in projected.projector.parameters():
            parameter.add_(1)
    assert torch.equal(projected(batch.images), before)


@pytest.mark.parametrize(("features", "width"), [(6, 12), (512, 1024), (2048, 2048)])
def test_the_projector_is_twice_as_wide_as_the_features_unless_these_are_2048(features: int, width: int) -> None:
    backbone = Backbone(nn.Identity(), features, (), ("fc",))
    modules = Projected(Network(backbone, classes=3)).projector.modules()
    shapes = [(m.in_features, m.out_features) for m in modules if isinstance(m, nn.Linear)]
    assert shapes == [(features, width), (width, width), (width, features)]


def test_a_copy_and_a_checkpoint_are_whole(
    projected: Projected, make_network: Callable[..., Network], setting: Setting, batch: Batch
) -> None:
    fresh = SelfReg().build(make_network(seed=5), setting)
    fresh.load_state_dict(projected.state_dict())
    draw = SelfReg().draw(batch, torch.Generator().manual_seed(0))
    loss, _ = SelfReg().loss(projected, batch, draw, None)
    for module in (fresh, deepcopy(projected)):
        assert isinstance(module, Projected)
        torch.testing.assert_close(SelfReg().loss(module, batch, draw, None)[0], loss, rtol=1e-12, atol=0)
