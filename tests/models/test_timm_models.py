import sys
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from mecam.models import create
from mecam.models.timm_models import stages
from mecam.virtual import MixStyle


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("test_resnet", ["layer1", "layer2", "layer3"]),
        ("test_efficientnet", ["blocks.1", "blocks.2", "blocks.3"]),
        ("test_convnext", ["stages.0", "stages.1", "stages.2"]),
        ("test_vit", ["blocks.1", "blocks.3"]),
        ("mobilenetv3_small_050", ["blocks.0", "blocks.1", "blocks.3"]),
    ],
)
def test_models_of_every_kind(name: str, expected: list[str]) -> None:
    torch.manual_seed(0)
    network = create(f"timm/{name}", classes=3).eval()
    assert list(network.stages) == [f"featurizer.{stage}" for stage in expected]
    images = torch.randn(4, 3, network.image_size, network.image_size)
    plain = network(images)
    assert network.features(images).shape == (4, network.num_features)
    assert plain.shape == (4, 3)
    style = MixStyle(p=1.0, alpha=1.0).attach(network, network.stages)
    with style.active():
        assert not torch.allclose(network(images), plain, atol=1e-7)


def test_a_model_that_names_no_stages() -> None:
    assert stages(torch.nn.Linear(2, 2)) == ()


def test_the_configuration_decides_size_and_normalization() -> None:
    network = create("timm/inception_v3.tv_in1k", classes=3)
    config = timm.get_pretrained_cfg("inception_v3.tv_in1k")
    assert network.image_size == config.input_size[-1] == 299
    assert network.normalization.mean == config.mean
    assert network.normalization.std == config.std


def test_checkpoints_of_timm_load_from_a_file(tmp_path: Path) -> None:
    theirs = timm.create_model("test_convnext", num_classes=5).eval()
    file = tmp_path / "test_convnext.safetensors"
    save_file(theirs.state_dict(), file)
    images = torch.randn(2, 3, 160, 160)
    torch.testing.assert_close(create("timm/test_convnext", classes=5, weights=file).eval()(images), theirs(images))
    assert "of 5 classes was left out" in create("timm/test_convnext", classes=3, weights=file).note


class TestDownloads:
    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
        """What create_model was asked for; it has no network."""
        asked: list[bool] = []
        create_model = timm.create_model

        def record(name: str, pretrained: bool, **settings: int) -> torch.nn.Module:
            asked.append(pretrained)
            if pretrained and name == "test_vit":
                raise OSError("no route to host")
            return create_model(name, pretrained=False, **settings)

        monkeypatch.setattr(timm, "create_model", record)
        return asked

    def test_only_when_asked(self, asked: list[bool]) -> None:
        scratch = create("timm/test_resnet", classes=3).train()
        loaded = create("timm/test_resnet", classes=3, pretrained=True).train()
        assert asked == [False, True]
        assert scratch.featurizer.bn1.training
        assert not loaded.featurizer.bn1.training
        assert loaded.note == "pretrained weights of timm/test_resnet"

    def test_a_failure_shows_its_cause(self, asked: list[bool]) -> None:
        with pytest.raises(ValueError, match=r"OSError: no route to host.*weights="):
            create("timm/test_vit", classes=3, pretrained=True)
        assert asked == [True]


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match=r"has no model 'resnet50x'; did you mean resnet50"):
        create("timm/resnet50x", classes=3)
    with pytest.raises(ValueError, match=r"has no weights 'nowhere' of resnet50; it has .*tv_in1k"):
        create("timm/resnet50.nowhere", classes=3)
    with pytest.raises(ValueError, match="has no model"):
        create("timm/hf-hub:timm/resnet50.a1_in1k", classes=3)


@pytest.mark.parametrize("failure", ["RuntimeError('no operator torchvision::nms')", "OSError('libcudart')"])
def test_timm_that_cannot_be_imported(failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "timm.py").write_text(f"raise {failure}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm")
    kind, cause = failure.rstrip(")'").split("('")
    with pytest.raises(ImportError, match=rf"timm/test_resnet .*{kind}: {cause}.*mecam\[timm\]"):
        create("timm/test_resnet", classes=3)
