"""A small case in float64 on which every method can be computed by hand."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from mecam.methods import Batch, Setting
from mecam.models.network import Backbone, Network
from mecam.preprocessing import Preprocessing

CLASSES, DOMAINS, EACH = 3, 3, 6


@pytest.fixture
def setting() -> Setting:
    return Setting(classes=CLASSES, domains=DOMAINS, steps=5000, lr=0.01)


@pytest.fixture
def make_network() -> Callable[..., Network]:
    """A featurizer of two stages with batch norm on images of 8 pixels, 6 features.

    No bias before batch norm, which would subtract it again: its gradient would be rounding alone, and Adam's step from
    it, divided by the root of its square, another one on every processor.
    """

    def make(seed: int = 0, dropout: float = 0.0) -> Network:
        torch.manual_seed(seed)
        layers = nn.Sequential()
        layers.add_module("stem", nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4), nn.Tanh()))
        layers.add_module("stage", nn.Sequential(nn.Conv2d(4, 6, 3, 2, 1), nn.Tanh()))
        layers.add_module("pool", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()))
        backbone = Backbone(layers, 6, ("stem", "stage"), ("fc",), Preprocessing(8))
        return Network(backbone, classes=CLASSES, dropout=dropout).double().train()

    return make


@pytest.fixture
def network(make_network: Callable[..., Network]) -> Network:
    return make_network()


@pytest.fixture
def make_batch() -> Callable[..., Batch]:
    def make(seed: int = 0, domains: int = DOMAINS, each: int = EACH, step: int = 0) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(domains * each, 3, 8, 8, generator=generator, dtype=torch.float64)
        shift = torch.arange(domains, dtype=torch.float64).repeat_interleave(each).view(-1, 1, 1, 1)
        labels = torch.randint(0, CLASSES, (domains * each,), generator=generator)
        return Batch(images + shift, labels, domains, step)

    return make


@pytest.fixture
def batch(make_batch: Callable[..., Batch]) -> Batch:
    return make_batch()
