import sys
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from mecam.models import create
from mecam.models.timm_models import build, stages
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
    network = create(f"timm/{name}", classes=3, pretrained=False).eval()
    assert list(network.stages) == [f"featurizer.{stage}" for stage in expected]
    images = torch.randn(4, 3, network.preprocessing.size, network.preprocessing.size)
    plain = network(images)
    assert network.features(images).shape == (4, network.num_features)
    assert plain.shape == (4, 3)
    style = MixStyle(p=1.0, alpha=1.0).attach(network, network.stages)
    with style.active():
        assert not torch.allclose(network(images), plain, atol=1e-7)


def test_a_model_that_names_no_stages() -> None:
    assert stages(torch.nn.Linear(2, 2)) == ()


def test_the_configuration_decides_size_and_normalization() -> None:
    network = create("timm/inception_v3.tv_in1k", classes=3, pretrained=False)
    config = timm.get_pretrained_cfg("inception_v3.tv_in1k")
    assert network.preprocessing.size == config.input_size[-1] == 299
    assert network.preprocessing.mean == config.mean
    assert network.preprocessing.std == config.std
    assert network.preprocessing.interpolation == config.interpolation == "bicubic"
    assert create("timm/test_resnet", classes=3, pretrained=False).preprocessing.interpolation == "bilinear"
    assert create("resnet8", classes=3).preprocessing.interpolation == "bilinear"


class TestImageSize:
    def test_a_transformer_is_built_for_it(self) -> None:
        images = torch.randn(2, 3, 224, 224)
        network = create("timm/vit_small_patch14_dinov2", classes=3, pretrained=False, image_size=28).eval()
        assert network.preprocessing.size == 28
        assert network(images[..., :28, :28]).shape == (2, 3)
        with torch.device("meta"):
            assert create("timm/vit_small_patch14_dinov2", classes=3, pretrained=False).preprocessing.size == 518
            assert create("timm/vit_tiny_patch16_384", classes=3, pretrained=False).preprocessing.size == 384

    def test_a_convolutional_network_takes_any(self) -> None:
        network = create("timm/test_resnet", classes=3, pretrained=False, image_size=48).eval()
        assert network.preprocessing.size == 48
        assert build("test_resnet", pretrained=False, image_size=48).preprocessing.size == 48
        assert network(torch.randn(2, 3, 48, 48)).shape == (2, 3)

    @pytest.mark.parametrize(("name", "size"), [("vit_tiny_patch16_224", 8), ("efficientformer_l1", 64)])
    def test_one_that_cannot_be_taken_is_refused_with_the_models_own(self, name: str, size: int) -> None:
        with pytest.raises(ValueError, match=rf"timm's {name} cannot take image_size={size} \(.*; its own size is 224"):
            create(f"timm/{name}", classes=3, pretrained=False, image_size=size)


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
            if name == "hf-hub:somebody/something":
                return create_model("test_vit", pretrained=False, **settings, depth=3)
            if (pretrained and name == "test_vit") or name.startswith("hf-hub:"):
                raise OSError("no route to host")
            return create_model(name, pretrained=False, **settings)

        def describe(name: str) -> tuple[dict[str, int], str, dict[str, int]]:
            assert name == "somebody/something"
            return {}, "test_vit", {"depth": 3, "img_size": 96, "num_classes": 10}

        monkeypatch.setattr(timm, "create_model", record)
        monkeypatch.setattr(timm.models, "load_model_config_from_hf", describe)
        return asked

    def test_unless_told_otherwise(self, asked: list[bool]) -> None:
        scratch = create("timm/test_resnet", classes=3, pretrained=False).train()
        loaded = create("timm/test_resnet", classes=3).train()
        assert asked == [False, True]
        assert scratch.featurizer.bn1.training
        assert not loaded.featurizer.bn1.training
        assert loaded.note == "pretrained weights of timm/test_resnet"

    def test_a_failure_shows_its_cause(self, asked: list[bool]) -> None:
        with pytest.raises(ValueError, match=r"OSError: no route to host.*--weights FILE.*--no-pretrained"):
            create("timm/test_vit", classes=3)
        assert asked == [True]

    def test_the_hub(self, asked: list[bool]) -> None:
        with pytest.raises(ValueError, match=r"OSError: no route to host.*--backbone timm/<name> --weights FILE"):
            create("hf-hub:somebody/else", classes=3)
        network = create("hf-hub:somebody/something", classes=3)
        assert asked == [True, True]
        assert network.offline == ("test_vit", {"depth": 3})
        name, settings = network.offline  # what a finished run keeps, to be opened without the Hub
        again = create(f"timm/{name}", classes=3, pretrained=False, settings=settings)
        assert len(again.featurizer.blocks) == 3
        again.load_state_dict(network.state_dict())


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match=r"has no model 'resnet50x'; did you mean resnet50"):
        create("timm/resnet50x", classes=3)
    with pytest.raises(ValueError, match=r"has no weights 'nowhere' of resnet50; it has .*tv_in1k"):
        create("timm/resnet50.nowhere", classes=3)
    with pytest.raises(ValueError, match="has no model"):
        create("timm/nowhere:resnet50", classes=3)
    with pytest.raises(ValueError, match=r"is not a Hugging Face Hub model name; write hf-hub:<organization>/<name>"):
        create("hf-hub:resnet50", classes=3)


@pytest.mark.parametrize("failure", ["RuntimeError('no operator torchvision::nms')", "OSError('libcudart')"])
def test_timm_that_cannot_be_imported(failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "timm.py").write_text(f"raise {failure}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm")
    kind, cause = failure.rstrip(")'").split("('")
    with pytest.raises(ImportError, match=rf"timm/test_resnet .*{kind}: {cause}.*mecam\[timm\]"):
        create("timm/test_resnet", classes=3)
