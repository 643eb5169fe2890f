"""URM against binary cross-entropies."""

import copy

import torch
from torch.nn import functional as F

from mecam.methods import Batch, Setting
from mecam.methods.urm import URM
from mecam.models.network import Network
from tests.methods.gradients import assert_same_gradient


def test_loss_and_gradient(network: Network, batch: Batch, setting: Setting) -> None:
    method = URM(lam=0.4)
    built = method.build(network, setting)
    loss, _ = method.loss(built, batch, method.draw(batch, torch.Generator()), None)  # type: ignore[arg-type]
    z = torch.tanh(network.featurizer(batch.images))
    judged = torch.sigmoid(method.discriminator.module(z))
    expected = F.cross_entropy(network.head(z), batch.labels) + 0.4 * F.binary_cross_entropy(
        judged, torch.ones_like(judged)
    )
    assert_same_gradient(network, loss, expected, rtol=1e-8)
    torch.testing.assert_close(built(batch.images), network.head(z), rtol=1e-12, atol=0)


def test_the_discriminator_takes_an_adam_step(network: Network, batch: Batch, setting: Setting) -> None:
    method = URM(lam=0.4, lr_d=0.02)
    built = method.build(network, setting)
    twin = copy.deepcopy(method.discriminator.module)
    noise = method.draw(batch, torch.Generator().manual_seed(1))
    assert noise.shape == (18, 6)
    assert -1 <= noise.min() < -0.8 < 0.8 < noise.max() <= 1
    _, z = method.loss(built, batch, noise, None)  # type: ignore[arg-type]
    method.after(built, batch, noise, z)
    adam = torch.optim.Adam(twin.parameters(), lr=0.02)
    real, fake = twin(noise.double()).sigmoid(), twin(z).sigmoid()
    loss_d = F.binary_cross_entropy(real, torch.ones_like(real)) + 0.4 * F.binary_cross_entropy(
        fake, torch.zeros_like(fake)
    )
    loss_d.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is None for p in network.parameters())
    slopes = {name: p.grad for name, p in twin.named_parameters()}
    adam.step()
    for name, parameter in method.discriminator.module.named_parameters():
        steep = torch.as_tensor(slopes[name]).abs() > 1e-6  # Adam's first step is the sign of a slope
        torch.testing.assert_close(parameter[steep], twin.get_parameter(name)[steep], rtol=1e-7, atol=1e-9)
