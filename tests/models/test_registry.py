from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mecam.models import BACKBONES, create, find
from mecam.preprocessing import IMAGE_SIZES, Preprocessing


@pytest.mark.parametrize("name", BACKBONES)
def test_entries_tell_the_truth(name: str) -> None:
    entry = find(name)
    with torch.device("meta"):
        network = create(name, classes=10, pretrained=False)
        assert sum(p.numel() for p in network.featurizer.parameters()) == entry.parameters
    assert network.preprocessing.size == entry.image_size
    assert entry.summary.endswith(".")
    assert entry.weights
    for stage in network.stages:
        network.get_submodule(stage)


def test_sizes_and_normalization() -> None:
    assert {name: entry.image_size for name, entry in BACKBONES.items()} == {
        "resnet8": 32, "resnet18": 224, "resnet50": 224, "resnet50v1": 224, "resnet101": 224, "resnet152": 224,
        "lite0": 224, "lite0small": 64, "lite1": 240, "lite2": 260,
    }  # fmt: skip
    assert set(BACKBONES) == set(IMAGE_SIZES)  # recipes know the sizes of all
    assert create("lite1", classes=2, pretrained=False, image_size=64).preprocessing.size == 64
    assert create("resnet8", classes=2).preprocessing == Preprocessing(32)
    pixels = torch.tensor([0.0, 127.0, 255.0]) / 255
    lite = create("lite0", classes=2, pretrained=False).preprocessing
    torch.testing.assert_close((pixels - lite.mean[0]) / lite.std[0], torch.tensor([-127 / 128, 0.0, 1.0]))


class TestPretrained:
    def test_batch_norm_is_frozen_with_weights_from_a_file_and_live_without(self, tmp_path: Path) -> None:
        scratch = create("resnet8", classes=3)
        assert woken(scratch)
        assert scratch.note == "initialised at random"
        file = tmp_path / "backbone.safetensors"
        save_file(scratch.featurizer.state_dict(), file)
        assert not woken(create("resnet8", classes=3, weights=file))
        assert woken(create("resnet8", classes=3, weights=file, freeze_bn=False))
        assert not woken(create("resnet8", classes=3, freeze_bn=True))

    def test_resnets_say_where_weights_come_from(self) -> None:
        with pytest.raises(ValueError, match=r"resnet50 has no pretrained weights of its own; .*torchvision's or"):
            create("resnet50", classes=3, pretrained=True)
        with pytest.raises(ValueError, match="resnet8 has no pretrained weights of its own; it trains from scratch"):
            create("resnet8", classes=3, pretrained=True)

    def test_one_source_at_a_time(self) -> None:
        with pytest.raises(ValueError, match="not both"):
            create("lite0", classes=3, pretrained=True, weights=Path("lite0.pth"))


def woken(network: nn.Module) -> bool:
    """Whether batch norm takes the batch's statistics while training; all layers or none."""
    modes = {module.training for module in network.train().modules() if isinstance(module, nn.BatchNorm2d)}
    assert len(modes) == 1
    return modes.pop()
