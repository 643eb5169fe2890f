"""shared_noise: all passes of a step draw the same numbers, and the stream goes on as after one pass."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.optim import GAM, SAM, MeCAM, SharpnessAware
from mecam.virtual import MixStyle
from tests.optim.flat import batch, network

X, Y = batch()


def draws(optimizer: SharpnessAware, model: nn.Module) -> list[tuple[float, float, float]]:
    seen: list[tuple[float, float, float]] = []

    def closure() -> Tensor:
        seen.append((torch.rand(()).item(), random.random(), float(np.random.rand())))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.step(closure)
    return seen


@pytest.mark.parametrize("method", [SAM, MeCAM, GAM])
def test_passes_share_draws_and_steps_do_not(method: type[SharpnessAware]) -> None:
    model = network()
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    seen = draws(method(model.parameters(), torch.optim.SGD, lr=0.1, shared_noise=True), model)
    first, second = seen[: method.passes], seen[method.passes :]
    assert len(set(first)) == len(set(second)) == 1
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    plain = [(torch.rand(()).item(), random.random(), float(np.random.rand())) for _ in range(2)]
    assert [first[0], second[0]] == plain  # the stream as after one plain pass a step


def test_passes_are_independent_by_default() -> None:
    model = network()
    seen = draws(MeCAM(model.parameters(), torch.optim.SGD, lr=0.1), model)
    assert len(set(seen)) == 6


def test_the_stream_goes_on_when_a_replayed_pass_raises() -> None:
    model = network()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, shared_noise=True)

    def closure() -> Tensor:
        torch.rand(3)
        if not optimizer.first_pass:
            raise ValueError("stop")
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    torch.manual_seed(0)
    with pytest.raises(ValueError, match="stop"):
        optimizer.step(closure)
    after = torch.rand(())
    torch.manual_seed(0)
    torch.rand(3)
    assert torch.equal(after, torch.rand(()))


def test_the_virtual_domain_does_not_disturb_dropout_and_mixes_anew_each_step() -> None:
    class Masks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.head = nn.Linear(4, 3)
            self.masks: list[Tensor] = []
            self.features: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            maps = self.conv(x)
            self.features.append(maps.detach())
            mask = F.dropout(torch.ones(8, 4), 0.5)
            self.masks.append(mask)
            return self.head(maps.mean((2, 3)) * mask)

    torch.manual_seed(0)
    model = Masks()
    style = MixStyle().attach(model, ["conv"])
    optimizer = MeCAM(model.parameters(), torch.optim.SGD, rho=0.0, lr=0.0, shared_noise=True, virtual_domain=style)
    images, labels = torch.randn(8, 3, 8, 8), torch.randint(0, 3, (8,))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    assert torch.equal(model.masks[0], model.masks[1])
    assert torch.equal(model.masks[0], model.masks[2])
    assert not torch.equal(model.masks[0], model.masks[3])
    plain, mixed, _, mixed_later = model.features[0], model.features[2], model.features[3], model.features[5]
    assert not torch.equal(plain, mixed)
    assert not torch.equal(mixed, mixed_later)
