"""MIRO: the regularizer in its closed form, who learns, and where the frozen copy is and is not."""

import math
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.methods.base import Batch, Setting
from mecam.methods.miro import MIRO, Anchored
from mecam.models.network import Backbone, Network
from mecam.preprocessing import Preprocessing


@pytest.fixture
def anchored(network: Network, setting: Setting) -> Anchored:
    return MIRO().build(network, setting)


def move(network: Anchored, seed: int = 3) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype), alpha=0.3)


def layers(network: Network, images: Tensor) -> list[Tensor]:
    """What the regularizer looks at, layer by layer."""
    stem = network.featurizer.stem(images)  # type: ignore[operator]
    stage = network.featurizer.stage(stem)  # type: ignore[operator]
    return [stem, stage, stage.mean((2, 3))]


def test_the_loss_element_by_element(make_network: Callable[..., Network], anchored: Anchored, batch: Batch) -> None:
    move(anchored)
    start = make_network().eval()
    now, then = layers(anchored.network, batch.images), layers(start, batch.images)
    regularizer = torch.zeros(())
    for f, f0, b in zip(now, then, anchored.variances, strict=True):
        s = (torch.log(1 + torch.exp(b)) + 1e-5).view(-1, *[1] * (f.ndim - 2)).expand_as(f)
        regularizer = regularizer + 0.5 * ((f - f0) ** 2 / s + torch.log(s)).mean()
    expected = F.cross_entropy(anchored(batch.images), batch.labels) + 0.3 * regularizer
    loss, state = MIRO(ld=0.3).loss(anchored, batch, None, None)
    assert state is None
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    without, _ = MIRO(ld=0.0).loss(anchored, batch, None, None)
    torch.testing.assert_close(without, F.cross_entropy(anchored(batch.images), batch.labels), rtol=1e-12, atol=0)


def test_at_the_start_only_the_variances_are_pulled(anchored: Anchored, batch: Batch) -> None:
    """Nothing has moved: ½ log 0.1 a layer, and no gradient of it in the network."""
    anchored.eval()
    _, drift = anchored.with_drift(batch.images)
    assert drift.item() == pytest.approx(3 * 0.5 * math.log(0.1), rel=1e-12)
    drift.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is None or (p.grad == 0).all() for p in anchored.network.parameters())
    for b in anchored.variances:
        assert b.grad is not None
        assert (b.grad > 0).all()


def test_variances_settle_at_the_mean_square_of_the_drift(anchored: Anchored, batch: Batch) -> None:
    move(anchored)
    anchored.eval()
    start = deepcopy(anchored)
    start.network.load_state_dict(start._start[0].state_dict())
    for f, f0, b in zip(
        layers(anchored.network, batch.images), layers(start.network, batch.images), anchored.variances, strict=True
    ):
        square = (f - f0).square().transpose(1, -1).flatten(0, -2).mean(0)
        b.data = torch.log(torch.expm1(square.detach() - 1e-5))
    _, drift = anchored.with_drift(batch.images)
    for gradient in torch.autograd.grad(drift, list(anchored.variances)):
        assert gradient.abs().max() < 1e-12


def test_all_but_the_start_learns_the_variances_ten_times_as_fast(anchored: Anchored, batch: Batch) -> None:
    method, before = MIRO(), {name: value.clone() for name, value in anchored._start[0].state_dict().items()}
    groups = method.groups(anchored)
    assert sorted(map(id, [*groups[0], *groups[1]])) == sorted(map(id, anchored.parameters()))
    assert list(method.rates(0)) == [1.0, 10.0]
    optimizer = torch.optim.SGD(anchored.parameters(), lr=0.1)
    for _ in range(2):  # the features have moved in the second
        optimizer.zero_grad()
        method.gradient(anchored, batch, None, None)
        optimizer.step()
    assert all(p.grad is not None and (p.grad != 0).any() for p in anchored.parameters())
    for name, value in anchored._start[0].state_dict().items():
        assert torch.equal(value, before[name]), name


def test_the_start_is_in_no_state_dict_and_a_resume_finds_it_again(
    make_network: Callable[..., Network], anchored: Anchored, batch: Batch, setting: Setting
) -> None:
    move(anchored)
    saved = {name: value.clone() for name, value in anchored.state_dict().items()}
    assert {name.split(".")[0] for name in saved} == {"network", "variances"}
    assert len(saved) == len(make_network().state_dict()) + 3
    resumed = MIRO().build(make_network(), setting)
    resumed.load_state_dict(saved)
    assert MIRO().loss(resumed, batch, None, None)[0] == MIRO().loss(anchored, batch, None, None)[0]


def test_it_can_be_copied_moved_and_switched(anchored: Anchored, batch: Batch) -> None:
    move(anchored)
    copied = deepcopy(anchored)
    loss, _ = MIRO().loss(anchored, batch, None, None)
    assert MIRO().loss(copied, batch, None, None)[0] == loss
    with torch.no_grad():
        copied.network.head.weight.zero_()
    assert not torch.equal(copied(batch.images), anchored(batch.images))
    anchored.eval().train()
    assert anchored.network.training
    assert not anchored._start[0].training
    single = Batch(batch.images.float(), batch.labels, batch.domains)
    assert MIRO().loss(anchored.float(), single, None, None)[0].dtype == torch.float32
    assert anchored.taps.outputs is None


class ChannelsLast(nn.Module):
    """(B, H, W, C) out of (B, C, H, W), and says so as timm's stages do."""

    output_fmt = "NHWC"

    def forward(self, x: Tensor) -> Tensor:
        return x.movedim(1, -1)


def test_each_stage_tells_where_its_channels_are(setting: Setting) -> None:
    mean = nn.Sequential(nn.Flatten(1, 2), nn.AdaptiveAvgPool2d((1, 4)), nn.Flatten())
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), ChannelsLast(), mean)
    network = Network(Backbone(layers, 4, ("0", "1"), (), Preprocessing(8)), classes=3)
    assert MIRO().build(network, setting).axes == [1, 3, 1]
    layers[1].output_fmt = "NCHW"
    assert MIRO().build(network, setting).axes == [1, 1, 1]
