import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.methods.base import Batch, Setting
from mecam.methods.sagnet import EPSILON, SagNet
from mecam.models.network import Network
from tests.methods.gradients import assert_same_gradient

close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)


def built(network: Network, batch: Batch, setting: Setting, w: float = 0.1) -> tuple[SagNet, dict[str, Tensor]]:
    method = SagNet(w=w)
    method.build(network, setting)
    return method, method.draw(batch, torch.Generator().manual_seed(3))


def style(z: Tensor) -> tuple[Tensor, Tensor]:
    mean = z.sum() / len(z)
    return mean, ((z - mean) ** 2).sum() / (len(z) - 1) + EPSILON


def test_loss_and_its_gradient_equal_the_formula(network: Network, batch: Batch, setting: Setting) -> None:
    method, draw = built(network, batch, setting, w=0.4)
    loss, _ = method.loss(network, batch, draw, None)
    z, classified, confused = network.featurizer(batch.images), [], []
    for i, y in enumerate(batch.labels):
        mean, variance = style(z[i])
        other_mean, other_variance = style(z[int(draw["style"][i])])
        a = draw["share"][i].double()
        mixed = (z[i] - mean) / variance.sqrt() * (a * variance + (1 - a) * other_variance).sqrt()
        classified.append(F.cross_entropy(network.head(mixed + a * mean + (1 - a) * other_mean), y))
        donor = z[int(draw["content"][i])].detach()
        donor_mean, donor_variance = style(donor)
        swapped = (donor - donor_mean) / donor_variance.sqrt() * variance.sqrt() + mean
        confused.append(-method.style_head.module(swapped).softmax(0).log().sum() / setting.classes)
    expected = torch.stack(classified).mean() + 0.4 * torch.stack(confused).mean()
    assert_same_gradient(network, loss, expected, rtol=1e-9)


def test_who_is_paired_with_itself_is_left_as_it_is(network: Network, batch: Batch, setting: Setting) -> None:
    method, draw = built(network, batch, setting, w=0.0)
    draw["style"] = draw["content"] = torch.arange(len(batch.labels))
    loss, content = method.loss(network, batch, draw, None)
    close(loss, F.cross_entropy(network(batch.images), batch.labels))
    close(content, network.features(batch.images))


def test_gradients_go_to_the_network_and_not_to_the_style_head(
    network: Network, batch: Batch, setting: Setting
) -> None:
    method, draw = built(network, batch, setting)
    method.gradient(network, batch, draw, None)
    assert all(p.grad is not None for p in network.parameters())
    assert all(p.grad is None for p in method.style_head.module.parameters())


def test_the_style_head_takes_one_step_a_step_and_the_features_are_not_kept(
    network: Network, batch: Batch, setting: Setting
) -> None:
    method, draw = built(network, batch, setting)
    before = copy.deepcopy(method.style_head.module)
    _, state = method.loss(network, batch, draw, None)
    assert method.after(network, batch, draw, state) is None  # type: ignore[func-returns-value]
    slopes = torch.autograd.grad(F.cross_entropy(before(state), batch.labels), list(before.parameters()))
    for old, new, g in zip(before.parameters(), method.style_head.module.parameters(), slopes, strict=True):
        torch.testing.assert_close(new, old - 0.01 * g / (g.abs() + 1e-8), rtol=1e-7, atol=1e-9)


def test_a_batch_of_one_image_is_ordinary_classification(
    network: Network, make_batch: Callable[..., Batch], setting: Setting
) -> None:
    batch = make_batch(domains=1, each=1)
    method, draw = built(network, batch, setting, w=0.0)
    loss, _ = method.loss(network, batch, draw, None)
    close(loss, F.cross_entropy(network(batch.images), batch.labels))
