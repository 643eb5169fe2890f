"""ZeroRedundancyOptimizer below a sharpness-aware optimizer trains as one process; above it, it is refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from mecam.optim import SAM, MeCAM, SharpnessAware
from tests.optim import distributed
from tests.optim.distributed import run
from tests.optim.flat import batch, closure_for, flatten, network

X, Y = batch()
METHODS = {"sam": partial(SAM, rho=0.4), "mecam": partial(MeCAM, rho=0.4, alpha=0.4, beta=0.3)}
one_thread = pytest.fixture(autouse=True)(distributed.one_thread)


def train(model: nn.Module, optimizer: SharpnessAware) -> Tensor:
    for _ in range(4):
        optimizer.step(closure_for(optimizer, model, X, Y))
    return flatten(list(model.parameters()))


def below(method: str) -> Tensor:
    model = network()

    def base(parameters: object) -> ZeroRedundancyOptimizer:
        return ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.Adam, lr=0.05)

    return train(model, METHODS[method](model.parameters(), base))


def above() -> str:
    try:
        ZeroRedundancyOptimizer(network().parameters(), SAM, base_optimizer=torch.optim.Adam, lr=0.05)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.works_with("torch ZeRO", "ZeroRedundancyOptimizer below SAM and MeCAM, two processes", packages=["torch"])
def test_it_works_below_and_is_refused_above(tmp_path: Path) -> None:
    assert not dist.is_initialized()
    ranks = run({**{name: partial(below, name) for name in METHODS}, "above": above}, tmp_path)
    for name, method in METHODS.items():
        model = network()
        expected = train(model, method(model.parameters(), torch.optim.Adam, lr=0.05))
        for found in ranks[name]:  # each rank has the whole batch here
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for message in ranks["above"]:
        assert "perturb this rank's share of the parameters only" in message
        assert "SAM(params, lambda p: ZeroRedundancyOptimizer(p, optimizer_class=torch.optim.Adam, lr=...))" in message
