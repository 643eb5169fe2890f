"""LP-FT: what trains, when, and with which memory."""

import pytest
from torch.nn import functional as F

from mecam.methods.base import Batch, Setting
from mecam.methods.lpft import LPFT
from mecam.models.network import Network


def test_the_loss_is_erm(network: Network, batch: Batch) -> None:
    expected = F.cross_entropy(network(batch.images), batch.labels)
    assert LPFT().loss(network, batch, None, None) == (expected, None)


def test_the_head_trains_first_and_the_optimizer_starts_anew_with_the_rest(network: Network, setting: Setting) -> None:
    method = LPFT(linear_steps=500, linear_rate=2.0)
    assert method.build(network, setting) is network
    features, head = method.groups(network)
    assert {id(p) for p in [*features, *head]} == {id(p) for p in network.parameters()}
    assert [id(p) for p in head] == [id(p) for p in network.head.parameters()]
    assert {step: list(method.rates(step)) for step in (0, 499, 500, 5000)} == {
        0: [0.0, 2.0],
        499: [0.0, 2.0],
        500: [1.0, 1.0],
        5000: [1.0, 1.0],
    }
    assert [step for step in range(5001) if method.restarts(step)] == [500]


@pytest.mark.parametrize("lr", [0.01, 5e-5])
def test_linear_lr_is_absolute(network: Network, lr: float) -> None:
    method = LPFT(linear_lr=3e-4)
    method.build(network, Setting(classes=3, domains=3, steps=5000, lr=lr))
    assert [lr * rate for rate in method.rates(0)] == [0.0, pytest.approx(3e-4, rel=1e-12)]
    assert list(method.rates(500)) == [1.0, 1.0]


def test_the_stages_scale_with_the_run_and_the_first_may_be_empty(network: Network) -> None:
    method = LPFT()
    method.build(network, Setting(classes=3, domains=3, steps=300, lr=0.01))
    assert [step for step in range(301) if method.restarts(step)] == [30]
    without = LPFT(linear_steps=0)
    without.build(network, Setting(classes=3, domains=3, steps=300, lr=0.01))
    assert list(without.rates(0)) == [1.0, 1.0]
    assert not any(without.restarts(step) for step in range(301))
