"""How losses over several domains depend on the domains: their order, and whether they differ."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.methods import Batch, Method, Setting, create
from mecam.models.network import Network

LATE = 4000  # after annealing


def built(name: str, network: Network, setting: Setting, **settings: float) -> Method:
    method = create(name, **settings)
    method.build(network, setting)
    return method


@pytest.mark.parametrize(
    "name", ["coral", "mmd", "irm", "vrex", "rsc", "groupdro", "fishr", "iga", "rdm", "eqrm", "cad", "condcad"]
)
def test_the_order_of_domains_does_not_matter(name: str, network: Network, batch: Batch, setting: Setting) -> None:
    """A state of one entry per domain follows their order."""
    method = built(name, network, setting)
    state, turn = method.initial_state(), [2, 0, 1]
    if state is not None:
        state = torch.rand(state.shape, dtype=torch.float64)
    order = torch.arange(18).view(3, 6)[turn].flatten()
    loss, following = method.loss(network, Batch(batch.images, batch.labels, 3, LATE), None, state)
    turned = Batch(batch.images[order], batch.labels[order], 3, LATE)
    other, other_following = method.loss(network, turned, None, None if state is None else state[turn])
    torch.testing.assert_close(other, loss, rtol=1e-10, atol=0)
    assert (following is None) == (other_following is None) == (state is None)
    if state is not None:
        torch.testing.assert_close(other_following, following[turn], rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize(
    ("name", "settings", "tolerance"),
    [("coral", {}, 1e-14), ("mmd", {}, 1e-12), ("vrex", {"lam": 1e4}, 1e-10), ("fishr", {}, 1e-10)],
)
def test_identical_domains_have_no_penalty(
    name: str,
    settings: dict[str, float],
    tolerance: float,
    network: Network,
    make_batch: Callable[..., Batch],
    setting: Setting,
) -> None:
    one = make_batch(domains=1)
    same = Batch(one.images.repeat(3, 1, 1, 1), one.labels.repeat(3), 3, LATE)
    method = built(name, network, setting, **settings)
    loss, _ = method.loss(network, same, None, method.initial_state())
    torch.testing.assert_close(loss, F.cross_entropy(network(same.images), same.labels), rtol=0, atol=tolerance)


@pytest.mark.parametrize(("name", "gamma"), [("coral", 50.0), ("mmd", 1.0)])
def test_the_penalty_is_the_featurizers_alone(
    name: str, gamma: float, network: Network, batch: Batch, setting: Setting
) -> None:
    def gradients(gamma: float) -> tuple[Tensor, ...]:
        network.zero_grad()
        built(name, network, setting, gamma=gamma).gradient(network, batch, None, None)
        conv = network.get_parameter("featurizer.stem.0.weight")
        assert conv.grad is not None
        assert network.head.weight.grad is not None
        return conv.grad, network.head.weight.grad

    (conv, head), (plain_conv, plain_head) = gradients(gamma), gradients(0.0)
    assert torch.equal(head, plain_head)
    assert not torch.allclose(conv, plain_conv)
