import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.methods.base import Batch, Setting
from mecam.methods.mtl import MTL, Embedded
from mecam.models.network import Network
from tests.methods.gradients import assert_same_gradient

close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)


def built(network: Network, setting: Setting, *, domainbed_compat: int = 0) -> tuple[MTL, Embedded]:
    method = MTL(ema=0.9, domainbed_compat=domainbed_compat)
    module = method.build(network, setting)
    assert isinstance(module, Embedded)
    return method, module


def test_loss_state_and_gradient_equal_the_formula(network: Network, batch: Batch, setting: Setting) -> None:
    method, module = built(network, setting)
    state = torch.randn(3, 6, dtype=torch.float64)
    kept = state.clone()
    loss, following = method.loss(module, batch, None, state)
    z, terms = network.featurizer(batch.images), []
    for d in range(3):
        of_domain, labels = z[6 * d : 6 * d + 6], batch.labels[6 * d : 6 * d + 6]
        embedding = 0.9 * sum(of_domain) / 6 + 0.1 * state[d]
        terms.append(
            sum(
                F.cross_entropy(network.head(torch.cat([v, embedding])), y)
                for v, y in zip(of_domain, labels, strict=True)
            )
            / 6
        )
        close(following[d], embedding.detach())
    expected = torch.as_tensor(terms[0] + terms[1] + terms[2])
    assert torch.equal(state, kept)
    assert not following.requires_grad
    assert_same_gradient(module, loss, expected, rtol=1e-9)


def test_embeddings_start_at_zero(network: Network, setting: Setting) -> None:
    method, _ = built(network, setting)
    state = method.initial_state()
    assert state.shape == (3, 6)
    assert state.dtype == torch.float64
    assert not state.any()


def test_the_order_of_domains_does_not_matter(network: Network, batch: Batch, setting: Setting) -> None:
    method, module = built(network, setting)
    state = torch.randn(3, 6, dtype=torch.float64)
    order = torch.tensor([2, 0, 1])
    images = torch.cat([batch.by_domain()[d][0] for d in order])
    labels = torch.cat([batch.by_domain()[d][1] for d in order])
    loss, following = method.loss(module, batch, None, state)
    other_loss, other = method.loss(module, Batch(images, labels, 3), None, state[order])
    close(other_loss, loss)
    close(other, following[order])


def test_predictions_use_the_mean_of_the_batch_and_a_single_image_its_own_features(
    network: Network, batch: Batch, setting: Setting
) -> None:
    _, module = built(network, setting)
    module.eval()
    z = network.features(batch.images)
    expected = [network.head(torch.cat([v, z.mean(0)])) for v in z]
    close(module(batch.images), torch.stack(expected))
    close(module(batch.images[:1])[0], network.head(torch.cat([z[0], z[0]])))


def test_every_parameter_learns(network: Network, batch: Batch, setting: Setting) -> None:
    method, module = built(network, setting)
    method.gradient(module, batch, None, method.initial_state())
    assert all(p.grad is not None for p in module.parameters())


def test_compatible_with_domainbed_the_embedding_is_noise(network: Network, batch: Batch, setting: Setting) -> None:
    method, module = built(network, setting, domainbed_compat=1)
    noise = method.draw(batch, torch.Generator().manual_seed(0))
    assert isinstance(noise, Tensor)
    loss, _ = method.loss(module, batch, noise, method.initial_state())
    again, _ = method.loss(module, batch, noise, torch.full((3, 6), 7.0, dtype=torch.float64))
    assert torch.equal(loss, again)
    expected = F.cross_entropy(
        network.head(torch.cat([network.features(batch.images), noise.double()], 1)), batch.labels
    )
    close(loss, 3 * expected)
    module.eval()
    assert torch.equal(module(batch.images), module(batch.images))


@pytest.mark.parametrize("each", [1, 6])
def test_a_copy_with_loaded_weights_predicts_the_same(
    make_network: Callable[..., Network], make_batch: Callable[..., Batch], setting: Setting, each: int
) -> None:
    images = make_batch(each=each).images
    _, module = built(make_network(seed=0), setting)
    _, other = built(make_network(seed=1), setting)
    other.load_state_dict(module.state_dict())
    expected = module.eval()(images)
    assert torch.equal(other.eval()(images), expected)
    assert torch.equal(copy.deepcopy(module)(images), expected)
