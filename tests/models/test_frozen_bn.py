"""Networks of timm and torchvision compute the same function with their batch norms folded, and have its gradients."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mecam
from mecam.models import fold_frozen, folding

mecam.repair_torchvision()
timm = pytest.importorskip("timm")
torchvision = pytest.importorskip("torchvision")

Build = Callable[[], nn.Module]


def timm_resnet(block: str, **settings: Any) -> nn.Module:
    resnet = timm.models.resnet
    sizes = {"channels": (8, 16, 24, 32), "num_classes": 3}
    network: nn.Module = resnet.ResNet(getattr(resnet, block), (1, 1, 1, 2), **{**sizes, **settings})
    return network


def torchvision_resnet(block: str) -> nn.Module:
    resnet = torchvision.models.resnet
    network: nn.Module = resnet.ResNet(getattr(resnet, block), [1, 1, 1, 1], num_classes=3)
    return network


NETWORKS: dict[str, tuple[int, Build]] = {  # and how many batch norms are left
    "timm basic blocks": (0, lambda: timm_resnet("BasicBlock")),
    "timm bottlenecks": (0, lambda: timm_resnet("Bottleneck")),
    "timm resnet-d": (1, lambda: timm_resnet("Bottleneck", stem_type="deep", avg_down=True)),
    "timm squeeze-and-excitation": (0, lambda: timm_resnet("BasicBlock", block_args={"attn_layer": "se"})),
    "timm SiLU": (0, lambda: timm_resnet("Bottleneck", act_layer="silu")),
    "timm efficientnet_lite0": (0, lambda: timm.create_model("efficientnet_lite0", num_classes=3)),
    "timm efficientnet_b0": (0, lambda: timm.create_model("efficientnet_b0", num_classes=3)),
    "timm test_efficientnet": (0, lambda: timm.create_model("test_efficientnet", num_classes=3)),
    "torchvision basic blocks": (0, lambda: torchvision_resnet("BasicBlock")),
    "torchvision bottlenecks": (0, lambda: torchvision_resnet("Bottleneck")),
    "torchvision efficientnet_b0": (0, lambda: torchvision.models.efficientnet_b0(num_classes=3)),
}


def frozen(build: Build) -> nn.Module:
    torch.manual_seed(0)
    network = build().double().eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            values = [*module.parameters(), *(each for each in module.buffers() if each.ndim)]
            for each in values:
                nn.init.uniform_(each, 0.5, 1.5)
    return network


def outcome(network: nn.Module, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    out = network(x)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(out)
    return out, torch.autograd.grad((out * weights).sum(), list(network.parameters()))


@pytest.fixture
def folded(monkeypatch: pytest.MonkeyPatch) -> list[nn.Conv2d]:
    """Return the convolutions that were folded."""
    convolutions: list[nn.Conv2d] = []
    original = folding._folded
    monkeypatch.setattr(
        folding, "_folded", lambda x, conv, *rest: convolutions.append(conv) or original(x, conv, *rest)
    )
    return convolutions


@pytest.mark.parametrize("name", NETWORKS)
def test_value_and_gradients_are_the_same(name: str, folded: list[nn.Conv2d]) -> None:
    left, build = NETWORKS[name]
    plain = frozen(build)
    network = copy.deepcopy(plain)
    fold_frozen(network)
    network = copy.deepcopy(network)
    x = torch.randn(2, 3, 33, 33, dtype=torch.float64)
    torch.testing.assert_close(outcome(network, x), outcome(plain, x), rtol=1e-9, atol=1e-9)
    assert len(set(folded)) == sum(isinstance(module, nn.BatchNorm2d) for module in plain.modules()) - left
    assert network.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", NETWORKS)
def test_the_kernels_of_a_gpu_agree_with_float64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    plain = frozen(NETWORKS[name][1])
    network = copy.deepcopy(plain).float().to("cuda", memory_format=torch.channels_last)  # type: ignore[call-overload]
    fold_frozen(network)
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    out, gradients = outcome(network, x.float().cuda())
    expected, truths = outcome(plain, x)
    for found, truth in zip([out, *gradients], [expected, *truths], strict=True):
        assert (found.double().cpu() - truth).norm() <= 1e-2 * truth.norm()


@pytest.mark.parametrize("name", ["timm bottlenecks", "timm test_efficientnet", "torchvision basic blocks"])
def test_live_batch_norms_run_as_before(name: str, folded: list[nn.Conv2d]) -> None:
    plain = frozen(NETWORKS[name][1]).train()
    network = copy.deepcopy(plain)
    fold_frozen(network)
    x = torch.randn(4, 3, 64, 64, dtype=torch.float64)
    torch.testing.assert_close(outcome(network, x), outcome(plain, x), rtol=0, atol=0)
    torch.testing.assert_close(network.state_dict(), plain.state_dict(), rtol=0, atol=0)
    assert not folded


def test_hooks_inside_a_block_still_run(folded: list[nn.Conv2d]) -> None:
    network = frozen(NETWORKS["timm bottlenecks"][1])
    fold_frozen(network)
    block: Any = network.get_submodule("layer1.0")
    seen: list[nn.Module] = []
    watched = [block.conv1, block.bn2, block.act3]
    for module in watched:
        module.register_forward_hook(lambda module, *_: seen.append(module))
    x = torch.randn(2, 3, 33, 33, dtype=torch.float64)
    out = network(x)
    assert seen == watched
    assert not {block.conv1, block.conv2} & {*folded}
    torch.testing.assert_close(out, frozen(NETWORKS["timm bottlenecks"][1])(x))


def test_other_pairs_of_layers_are_left(folded: list[nn.Conv2d]) -> None:
    """A bias, another padding, no scale, and statistics of the batch."""
    layers = [
        (nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3)),
        (nn.Conv2d(3, 3, 3, padding="same", bias=False), nn.BatchNorm2d(3)),
        (nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect", bias=False), nn.BatchNorm2d(3)),
        (nn.Conv2d(3, 3, 3, bias=False), nn.BatchNorm2d(3, affine=False)),
        (nn.Conv2d(3, 3, 3, bias=False), nn.BatchNorm2d(3, track_running_stats=False)),
        (nn.Conv2d(3, 3, 3, bias=False), nn.GroupNorm(3, 3)),
    ]
    plain = frozen(lambda: nn.Sequential(*(layer for pair in layers for layer in pair)))
    network = copy.deepcopy(plain)
    fold_frozen(network)
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(network(x), plain(x), rtol=0, atol=0)
    assert not folded
