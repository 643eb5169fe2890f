import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.methods.arm import ARM, Adaptive, Contextual, support_of
from mecam.methods.base import Batch, Setting
from mecam.models.network import Backbone, Network
from mecam.models.registry import create
from mecam.virtual import Fourier, MixStyle

close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)


def built(network: Network, setting: Setting) -> tuple[ARM, Contextual, Adaptive]:
    method = ARM()
    module = method.build(network, setting)
    assert isinstance(module, Contextual)
    assert isinstance(network.featurizer, Adaptive)
    return method, module, network.featurizer


def by_hand(network: Network, featurizer: Adaptive, images: Tensor, support: int) -> Tensor:
    """The context of each support written into a fourth channel, image by image."""
    maps = featurizer.context(images)
    widened = images.new_empty(len(images), 4, *images.shape[2:])
    widened[:, :3] = images
    for i in range(len(images)):
        first = i // support * support
        widened[i, 3] = sum(maps[n, 0] for n in range(first, first + support)) / support
    logits: Tensor = network.head(featurizer.backbone(widened))
    return logits


@pytest.mark.parametrize(("each", "support"), [(6, 6), (8, 8), (16, 8), (1, 1)])
def test_loss_and_gradient_equal_the_formula(
    network: Network, make_batch: Callable[..., Batch], setting: Setting, each: int, support: int
) -> None:
    method, module, featurizer = built(network, setting)
    batch = make_batch(each=each)
    loss, _ = method.loss(module, batch, None, None)
    expected = F.cross_entropy(by_hand(network, featurizer, batch.images, support), batch.labels)
    close(loss, expected)
    parameters = list(module.parameters())
    assert {id(p) for p in featurizer.context.parameters()} < {id(p) for p in parameters}  # the context net trains
    found, wanted = (torch.autograd.grad(value, parameters) for value in (loss, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize(("images", "support"), [(1, 1), (7, 7), (8, 8), (9, 9), (256, 8)])
def test_supports_in_prediction(images: int, support: int) -> None:
    assert support_of(images) == support


def test_predictions_depend_on_the_support_and_on_nothing_else(
    network: Network, make_batch: Callable[..., Batch], setting: Setting
) -> None:
    _, module, featurizer = built(network, setting)
    images = make_batch(domains=1, each=16).images
    module.eval()
    whole = module(images)
    close(whole[:8], module(images[:8]))
    assert not torch.allclose(whole[:4], module(images[:4]), rtol=1e-4)
    close(module(images[:1]), by_hand(network, featurizer, images[:1], 1))


def test_the_fourth_channel_starts_as_a_copy_of_the_first(network: Network, setting: Setting) -> None:
    before = network.featurizer.get_parameter("stem.0.weight").detach().clone()
    _, _, featurizer = built(network, setting)
    after = featurizer.backbone.get_parameter("stem.0.weight")
    assert torch.equal(after, torch.cat([before, before[:, :1]], 1))


@pytest.mark.parametrize(("backbone", "first"), [("resnet8", "conv1"), ("lite0", "_conv_stem")])
def test_real_backbones_are_widened_where_the_image_enters(setting: Setting, backbone: str, first: str) -> None:
    network = create(backbone, classes=3, pretrained=False)
    method, module, featurizer = built(network, setting)
    assert featurizer.backbone.get_parameter(f"{first}.weight").shape[1] == 4
    batch = Batch(torch.randn(6, 3, 32, 32), torch.tensor([0, 1, 2, 0, 1, 2]), 3)
    method.gradient(module, batch, None, None)
    assert all(p.grad is not None for p in module.parameters())


def test_a_backbone_without_such_a_convolution_is_refused(setting: Setting) -> None:
    flat = Backbone(nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 6)), 6, (), ("fc",))
    with pytest.raises(ValueError, match="no convolution of 3 channels"):
        ARM().build(Network(flat, classes=3), setting)


def test_frozen_batch_norm_stays_so_and_the_context_nets_does_not(setting: Setting) -> None:
    network = create("resnet8", classes=3, freeze_bn=True)
    _, module, featurizer = built(network, setting)
    for mode in (True, False, True):
        module.train(mode)
        norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm2d)]
        live = [m for m in featurizer.context if isinstance(m, nn.BatchNorm2d)]
        assert [m.training for m in live] == [mode, mode]
        assert sum(m.training for m in norms) == 2 * mode


def test_virtual_domains_still_act_on_the_network(network: Network, batch: Batch, setting: Setting) -> None:
    _, module, _ = built(network, setting)
    plain = module(batch.images, 6)
    for domain in (Fourier().attach(network.featurizer), MixStyle().attach(network, network.stages)):
        with domain.active():
            assert not torch.allclose(module(batch.images, 6), plain)


def test_a_copy_with_loaded_weights_predicts_the_same(
    make_network: Callable[..., Network], batch: Batch, setting: Setting
) -> None:
    _, module, _ = built(make_network(seed=0), setting)
    _, other, _ = built(make_network(seed=1), setting)
    other.load_state_dict(module.state_dict())
    expected = module.eval()(batch.images)
    assert torch.equal(other.eval()(batch.images), expected)
    assert torch.equal(copy.deepcopy(module)(batch.images), expected)
