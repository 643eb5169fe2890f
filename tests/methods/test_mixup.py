"""Mixup against one pair of domains after the other."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from mecam.methods import Batch
from mecam.methods.mixup import Mixup
from mecam.models.network import Network
from tests.methods.gradients import assert_same_gradient


def test_loss_and_gradient_equal_a_pass_for_each_pair(network: Network, batch: Batch) -> None:
    network.eval()  # batch norm would see other batches
    method = Mixup(alpha=1.0)
    draw = method.draw(batch, torch.Generator().manual_seed(3))
    loss, _ = method.loss(network, batch, draw, None)
    partners, shares = draw[0].view(3, 6), draw[1].view(3, 6)
    domains = batch.by_domain()
    losses = []
    for (x, y), partner, share in zip(domains, partners, shares, strict=True):
        other_x, other_y = domains[int(partner[0]) // 6]
        lam = share[0].item()
        logits = network(lam * x + (1 - lam) * other_x)
        losses.append(lam * F.cross_entropy(logits, y) + (1 - lam) * F.cross_entropy(logits, other_y))
    other = torch.stack(losses).mean()
    assert_same_gradient(network, loss, other)


@pytest.mark.parametrize(("domains", "each"), [(2, 1), (3, 6), (5, 2)])
def test_the_pairs_are_a_circle_of_all_domains(make_batch: Callable[..., Batch], domains: int, each: int) -> None:
    batch = make_batch(domains=domains, each=each)
    circles = set()
    for seed in range(12):
        partners, shares = Mixup().draw(batch, torch.Generator().manual_seed(seed))
        by_domain = partners.view(domains, each)
        assert torch.equal(by_domain % each, torch.arange(each).expand(domains, each))
        following = (by_domain // each)[:, 0].tolist()
        visited = [0]
        while following[visited[-1]] != 0:
            visited.append(following[visited[-1]])
        assert sorted(visited) == list(range(domains))
        assert torch.equal(shares.view(domains, each), shares.view(domains, each)[:, :1].expand(domains, each))
        circles.add(tuple(visited))
    assert len(circles) > 1 or domains == 2


def test_shares_are_beta(make_batch: Callable[..., Batch]) -> None:
    batch = make_batch(domains=4000, each=1)
    shares = Mixup(alpha=0.2).draw(batch, torch.Generator().manual_seed(0))[1]
    # Beta(a, a) has mean 1/2 and variance 1 / (4 (2a + 1))
    assert shares.mean().item() == pytest.approx(0.5, abs=0.03)
    assert shares.var().item() == pytest.approx(1 / 5.6, abs=0.01)
    assert shares.dtype == batch.images.dtype


def test_a_draw_is_its_generators(batch: Batch) -> None:
    draws = [Mixup().draw(batch, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(draws[0][1], draws[1][1])
    assert not torch.equal(draws[0][1], draws[2][1])


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_whole_share_is_erm(network: Network, batch: Batch, share: float) -> None:
    partners = torch.arange(18).roll(-6)
    images = batch.images.clone()
    loss, _ = Mixup().loss(network, batch, (partners, torch.full((18,), share, dtype=torch.float64)), None)
    torch.testing.assert_close(loss, F.cross_entropy(network(batch.images), batch.labels), rtol=1e-10, atol=0)
    assert torch.equal(batch.images, images)
