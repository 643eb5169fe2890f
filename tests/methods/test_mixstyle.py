"""MixStyle as a method: the loss of virtual.MixStyle's network, with one set of numbers a step."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.methods.base import Batch, Setting
from mecam.methods.mixstyle import MixStyle, Numbers
from mecam.models.network import Backbone, Network


@pytest.fixture
def mixing(network: Network, setting: Setting) -> MixStyle:
    method = MixStyle(p=1.0, alpha=0.5)
    assert method.build(network, setting) is network
    return method


def numbers(method: MixStyle, batch: Batch, seed: int) -> Numbers:
    return method.draw(batch, torch.Generator().manual_seed(seed))


def test_the_loss_is_that_of_features_in_other_styles(mixing: MixStyle, network: Network, batch: Batch) -> None:
    """Each stage's map is affine in its own, channel by channel, with the statistics between two images' own."""
    seen: list[tuple[Tensor, Tensor]] = []
    stem = network.get_submodule("featurizer.stem")
    after = network.get_submodule("featurizer.stage")[0]  # type: ignore[index]
    outputs: list[Tensor] = []
    handles = [
        stem[-1].register_forward_hook(lambda _m, _a, output: outputs.append(output)),  # type: ignore[index]
        after.register_forward_pre_hook(lambda _m, args: seen.append((outputs[-1], args[0]))),
    ]
    loss, _ = mixing.loss(network, batch, numbers(mixing, batch, 5), None)
    for handle in handles:
        handle.remove()
    (plain, mixed), eps = seen[0], 1e-6
    mean, deviation = plain.mean((2, 3), keepdim=True), (plain.var((2, 3), keepdim=True) + eps).sqrt()
    new_mean, new_deviation = mixed.mean((2, 3), keepdim=True), mixed.std((2, 3), keepdim=True)
    rescaled = (plain - mean) / plain.std((2, 3), keepdim=True) * new_deviation + new_mean
    torch.testing.assert_close(mixed, rescaled, rtol=1e-9, atol=1e-11)
    assert (new_mean >= mean.amin(0) - 1e-9).all()
    assert (new_mean <= mean.amax(0) + 1e-9).all()
    assert not torch.allclose(new_mean, mean)
    assert (new_deviation <= deviation.amax(0) + 1e-9).all()
    assert loss != F.cross_entropy(network(batch.images), batch.labels)


def test_all_passes_of_a_step_see_the_same_numbers(mixing: MixStyle, network: Network, batch: Batch) -> None:
    draw = numbers(mixing, batch, 0)
    assert all(map(torch.equal, draw, numbers(mixing, batch, 0)))
    stream = torch.get_rng_state()
    first, _ = mixing.loss(network, batch, draw, None)
    torch.rand(3)
    other, _ = mixing.loss(network, batch, numbers(mixing, batch, 1), None)
    again, _ = mixing.loss(network, batch, draw, None)
    assert first == again
    assert first != other
    torch.set_rng_state(stream)
    before = torch.rand(1)
    torch.set_rng_state(stream)
    mixing.loss(network, batch, draw, None)
    assert torch.rand(1) == before  # dropout would not notice


def test_numbers_lie_where_the_batch_does(mixing: MixStyle, batch: Batch) -> None:
    elsewhere = Batch(batch.images.to("meta"), batch.labels.to("meta"), batch.domains)
    assert {tensor.device.type for tensor in numbers(mixing, elsewhere, 0)} == {"meta"}


def test_predictions_and_p_of_zero_are_the_networks_own(
    make_network: Callable[..., Network], mixing: MixStyle, network: Network, batch: Batch, setting: Setting
) -> None:
    plain = make_network()
    assert torch.equal(network(batch.images), plain(batch.images))
    never, other = MixStyle(p=0.0), make_network()
    never.build(other, setting)
    assert never.loss(other, batch, numbers(never, batch, 0), None)[0] == F.cross_entropy(
        plain(batch.images), batch.labels
    )
    mixing.loss(network, batch, numbers(mixing, batch, 0), None)
    network.eval()
    plain.load_state_dict(network.state_dict())
    assert torch.equal(network(batch.images), plain.eval()(batch.images))


def test_half_of_the_steps_are_left_alone_at_each_stage(network: Network, batch: Batch, setting: Setting) -> None:
    method = MixStyle()
    method.build(network, setting)
    network.eval()
    plain = F.cross_entropy(network(batch.images), batch.labels)
    draws = [numbers(method, batch, seed) for seed in range(80)]
    alone = sum(bool(method.loss(network, batch, draw, None)[0] == plain) for draw in draws)
    assert 8 <= alone <= 32  # two stages: a quarter of them, 20 +- 4


def test_every_weight_learns(mixing: MixStyle, network: Network, batch: Batch) -> None:
    mixing.gradient(network, batch, numbers(mixing, batch, 0), None)
    assert all(p.grad is not None for p in network.parameters())


def test_a_backbone_without_stages_is_refused(setting: Setting) -> None:
    backbone = Backbone(nn.Flatten(), 12, (), ("fc",))
    with pytest.raises(ValueError, match="needs a backbone with named stages"):
        MixStyle().build(Network(backbone, classes=3), setting)
