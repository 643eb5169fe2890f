from collections.abc import Callable

import pytest
import timm
import torch
import torchvision
from torch import nn

from mecam import models
from mecam.models import ResNet, resnet8, resnet18, resnet50


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet50v1", "resnet101", "resnet152"])
class TestAgainstTorchvision:
    def test_keys_and_shapes(self, name: str) -> None:
        with torch.device("meta"):
            ours, theirs = getattr(models, name)(classes=7).state_dict(), tv(name, 7).state_dict()
        assert [(key, tensor.shape) for key, tensor in ours.items()] == [(k, t.shape) for k, t in theirs.items()]

    def test_outputs_with_the_same_weights(self, name: str) -> None:
        torch.manual_seed(0)
        with torch.device("meta"):
            ours = getattr(models, name)(classes=7).double()
        theirs = tv(name, 7).double()
        randomise_batch_norm(theirs)
        weights = {key: tensor.clone() for key, tensor in theirs.state_dict().items()}
        ours.load_state_dict(weights, strict=True, assign=True)
        images = torch.randn(2, 3, 33, 33, dtype=torch.float64)
        for training in (False, True):
            with torch.no_grad():
                found, expected = ours.train(training)(images), theirs.train(training)(images)
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-12, atol=1e-12)


def test_timm_weights_load() -> None:
    theirs = timm.create_model("resnet50", num_classes=5).double().eval()
    ours = resnet50(classes=5).double().eval()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    images = torch.randn(1, 3, 64, 64, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("build", [resnet8, resnet18, resnet50])
@pytest.mark.parametrize("small_input", [False, True])
def test_32_pixels(build: Callable[..., ResNet], small_input: bool) -> None:
    network = build(classes=4, channels=1, small_input=small_input)
    images = torch.randn(2, 1, 32, 32)
    assert network(images).shape == (2, 4)
    assert network.features(images).shape == (2, network.num_features)


def test_small_input_keeps_the_resolution_in_the_first_stage() -> None:
    images = torch.randn(1, 3, 32, 32)
    for small_input, expected in ((True, (1, 64, 32, 32)), (False, (1, 64, 8, 8))):
        network = resnet18(classes=4, small_input=small_input)
        assert network.layer1(network.maxpool(network.conv1(images))).shape == expected


def test_classifier_reads_the_features() -> None:
    network = resnet8(classes=4).eval()
    images = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(network(images), network.fc(network.features(images)))
    assert network.num_features == network.fc.in_features == 64


def tv(name: str, classes: int) -> nn.Module:
    network: nn.Module = getattr(torchvision.models, name.removesuffix("v1"))(num_classes=classes)
    if name.endswith("v1"):
        for stage in ("layer2", "layer3", "layer4"):
            first = network.get_submodule(f"{stage}.0")
            first.conv1.stride, first.conv2.stride = (2, 2), (1, 1)
    return network


def randomise_batch_norm(network: nn.Module) -> None:
    """Numbers that tell one layer from another, near those of a trained network."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.0)
            nn.init.normal_(module.bias, std=0.1)
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
