import argparse
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn

from mecam.models import WeightsError, create, read_weights, resnet8, resnet50v1
from mecam.models.weights import find_weights
from mecam.runs import RunFolder

IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def theirs() -> nn.Module:
    return trained(torchvision.models.resnet18(num_classes=5))


@pytest.fixture(scope="module")
def source() -> nn.Module:
    return trained(resnet8(classes=5))


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    return resnet50v1(classes=2).state_dict()


def trained(network: nn.Module) -> nn.Module:
    """With statistics that are not the initial ones."""
    network(torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(1)))
    return network.eval()


def save(state: Any, file: Path) -> Path:
    if file.suffix == ".safetensors":
        save_file(state, file)
    else:
        torch.save(state, file)
    return file


def test_torchvision_checkpoints(theirs: nn.Module, tmp_path: Path) -> None:
    file = save(theirs.state_dict(), tmp_path / "resnet18.pth")
    torch.testing.assert_close(create("resnet18", classes=5, weights=file).eval()(IMAGES), theirs(IMAGES))


@pytest.mark.parametrize("ending", ["safetensors", "pth", "pt"])
def test_every_format(ending: str, source: nn.Module, tmp_path: Path) -> None:
    file = save(source.state_dict(), tmp_path / f"resnet8.{ending}")
    same = create("resnet8", classes=5, weights=file).eval()
    torch.testing.assert_close(same(IMAGES), source(IMAGES))
    assert same.note == f"weights from {file}, with its classifier"
    other = create("resnet8", classes=3, weights=file).eval()
    torch.testing.assert_close(other.features(IMAGES), same.features(IMAGES), rtol=0, atol=0)
    assert other(IMAGES).shape == (2, 3)
    assert other.note == f"weights from {file}; its classifier of 5 classes was left out, the head of 3 is new"


def test_a_checkpoint_without_classifier(source: nn.Module, tmp_path: Path) -> None:
    state = {key: tensor for key, tensor in source.state_dict().items() if not key.startswith("fc.")}
    network = create("resnet8", classes=5, weights=save(state, tmp_path / "backbone.pth")).eval()
    torch.testing.assert_close(network.featurizer.state_dict(), state, check_device=False, rtol=0, atol=0)
    assert network.note.endswith("which has no classifier")


def test_checkpoints_from_before_batch_counters(source: nn.Module, tmp_path: Path) -> None:
    state = {key: tensor for key, tensor in source.state_dict().items() if "num_batches_tracked" not in key}
    file = save(state, tmp_path / "old.safetensors")
    torch.testing.assert_close(create("resnet8", classes=5, weights=file).eval()(IMAGES), source(IMAGES))


@pytest.mark.parametrize("around", ["state_dict", "model"])
def test_what_training_scripts_put_around(around: str, source: nn.Module, tmp_path: Path) -> None:
    state = {f"module.{key}": tensor for key, tensor in source.state_dict().items()}
    file = save({around: state, "epoch": 3, "best": 0.9}, tmp_path / "epoch3.pth")
    torch.testing.assert_close(create("resnet8", classes=5, weights=file).eval()(IMAGES), source(IMAGES))


def test_half_precision_is_widened(source: nn.Module, tmp_path: Path) -> None:
    state = {k: t.half() if t.is_floating_point() else t for k, t in source.state_dict().items()}
    network = create("resnet8", classes=5, weights=save(state, tmp_path / "half.safetensors"))
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    torch.testing.assert_close(network.eval()(IMAGES), source(IMAGES), rtol=0.02, atol=0.02)


def test_a_network_saved_whole(tmp_path: Path) -> None:
    first = create("resnet8", classes=3)
    file = save(first.state_dict(), tmp_path / "model.safetensors")
    second = create("resnet8", classes=3, weights=file)
    torch.testing.assert_close(second.state_dict(), first.state_dict(), rtol=0, atol=0)
    third = create("resnet8", classes=2, weights=file)
    assert third.note.endswith("its classifier of 3 classes was left out, the head of 2 is new")


def test_a_network_saved_whole_whose_featurizer_has_a_head(tmp_path: Path) -> None:
    first = create("timm/test_convnext", classes=3, pretrained=False)
    file = save(first.state_dict(), tmp_path / "model.safetensors")
    second = create("timm/test_convnext", classes=3, weights=file)
    torch.testing.assert_close(second.state_dict(), first.state_dict(), rtol=0, atol=0)


class TestArchitecture:
    """resnet50 and resnet50v1 have the same keys and shapes: only a file's metadata tells which it holds."""

    @pytest.mark.parametrize("stated", ["resnet50v1", "ResNet50 v1: stride in the first 1x1 convolution"])
    def test_a_file_that_names_its_form(self, state: dict[str, Tensor], stated: str, tmp_path: Path) -> None:
        file = tmp_path / "v1.safetensors"
        save_file(state, file, metadata={"architecture": stated})
        loaded = create("resnet50v1", classes=2, weights=file).featurizer.state_dict()
        torch.testing.assert_close(loaded, {k: t for k, t in state.items() if k in loaded}, rtol=0, atol=0)
        for other in ("resnet50", "resnet18", "timm/resnet50"):
            with pytest.raises(WeightsError, match=f"v1.safetensors holds {stated}; use --backbone resnet50v1$"):
                create(other, classes=2, weights=file)

    def test_a_file_of_the_other_form(self, state: dict[str, Tensor], tmp_path: Path) -> None:
        file = tmp_path / "other.safetensors"
        for stated in (
            "resnet50",
            "ResNet-50",
            "ResNet50 v1.5",
            "resnet50_v1.5",
            "ResNet-50 V1.5: stride in the 3x3 convolution",
            "timm/resnet50.tv_in1k",
            "hf-hub:timm/resnet50.a1_in1k",
        ):
            save_file(state, file, metadata={"architecture": stated})
            create("resnet50", classes=2, weights=file)
            with pytest.raises(WeightsError, match=f"holds {stated}; use --backbone resnet50$"):
                create("resnet50v1", classes=2, weights=file)

    def test_the_weights_of_a_run(self, state: dict[str, Tensor], tmp_path: Path) -> None:
        folder = RunFolder(tmp_path)
        folder.write_model(state, {"backbone": "resnet50v1"})
        create("resnet50v1", classes=2, weights=folder.model_file)
        with pytest.raises(WeightsError, match=r"holds resnet50v1; use --backbone resnet50v1$"):
            create("resnet50", classes=2, weights=folder.model_file)
        folder.write_model(state, {"backbone": "resnet50"})
        with pytest.raises(WeightsError, match=r"holds resnet50; use --backbone resnet50$"):
            create("resnet50v1", classes=2, weights=folder.model_file)

    @pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"architecture": "some network"}, {"mecam": "[1"}])
    def test_a_file_that_does_not(
        self, state: dict[str, Tensor], metadata: dict[str, str] | None, tmp_path: Path
    ) -> None:
        file = tmp_path / "plain.safetensors"
        save_file(state, file, metadata=metadata)
        create("resnet50", classes=2, weights=file)
        with pytest.raises(WeightsError, match=r"does not name resnet50v1 as its architecture.*--backbone resnet50,"):
            create("resnet50v1", classes=2, weights=file)

    def test_what_is_wrong_with_the_file_comes_first(self, tmp_path: Path) -> None:
        (tmp_path / "cut.safetensors").write_bytes(b"not a checkpoint")
        with pytest.raises(WeightsError, match="cannot be read"):
            create("resnet50v1", classes=2, weights=tmp_path / "cut.safetensors")
        with pytest.raises(WeightsError, match="there is no file"):
            create("resnet50v1", classes=2, weights=tmp_path / "absent.safetensors")


class TestFolder:
    """A recipe names a file, $MECAM_WEIGHTS says where it is."""

    def test_a_bare_name(self, source: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        save(source.state_dict(), tmp_path / "tiny.safetensors")
        with pytest.raises(WeightsError, match=r"there is no file tiny.safetensors; .* its folder in \$MECAM_WEIGHTS$"):
            create("resnet8", classes=5, weights="tiny.safetensors")
        monkeypatch.setenv("MECAM_WEIGHTS", str(tmp_path))
        network = create("resnet8", classes=5, weights="tiny.safetensors").eval()
        torch.testing.assert_close(network(IMAGES), source(IMAGES))
        assert find_weights("folder/tiny.safetensors") == Path("folder/tiny.safetensors")

    def test_a_file_in_this_folder_comes_first(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "tiny.safetensors").touch()
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("MECAM_WEIGHTS", "elsewhere")
        assert find_weights("tiny.safetensors") == Path("tiny.safetensors")


class TestRefusals:
    def test_another_network(self, theirs: nn.Module, tmp_path: Path) -> None:
        file = save(theirs.state_dict(), tmp_path / "resnet18.pth")
        with pytest.raises(WeightsError, match=r"resnet18.pth is not a checkpoint of resnet50: ") as error:
            create("resnet50", classes=5, weights=file)
        assert "missing (layer1.0.conv3.weight, layer1.0.bn3.weight, layer1.0.bn3.bias, ...)" in str(error.value)
        assert "layer1.0.conv1.weight of shape (64, 64, 3, 3) where (64, 64, 1, 1) is expected" in str(error.value)
        with pytest.raises(WeightsError, match=r"unexpected \(layer1.1.conv1.weight, "):
            create("resnet8", classes=5, weights=file)

    def test_one_key_too_many_or_too_few(self, source: nn.Module, tmp_path: Path) -> None:
        state = source.state_dict()
        more = save({**state, "extra": torch.zeros(1)}, tmp_path / "more.pth")
        with pytest.raises(WeightsError, match=r": 1 unexpected \(extra\)$"):
            create("resnet8", classes=5, weights=more)
        less = save({k: t for k, t in state.items() if k != "bn1.weight"}, tmp_path / "less.pth")
        with pytest.raises(WeightsError, match=r": 1 missing \(bn1.weight\)$"):
            create("resnet8", classes=5, weights=less)

    def test_code_is_not_run(self, tmp_path: Path) -> None:
        trace = tmp_path / "trace"
        file = save({"weight": Attack(trace)}, tmp_path / "attack.pth")
        with pytest.raises(WeightsError, match="could run code"):
            read_weights(file)
        assert not trace.exists()

    def test_objects_of_training_scripts(self, tmp_path: Path) -> None:
        file = save({"state_dict": {}, "args": argparse.Namespace(lr=1)}, tmp_path / "script.pth")
        with pytest.raises(WeightsError, match="save the state dict alone"):
            read_weights(file)

    @pytest.mark.parametrize("content", [[1, 2], {}, {"weight": 3}, torch.zeros(2)])
    def test_other_content(self, content: object, tmp_path: Path) -> None:
        with pytest.raises(WeightsError, match="should hold a state dict"):
            read_weights(save(content, tmp_path / "other.pt"))

    @pytest.mark.parametrize("ending", ["safetensors", "pth", "pt"])
    def test_damaged_files(self, ending: str, tmp_path: Path) -> None:
        file = tmp_path / f"cut.{ending}"
        for content in (b"", b"not a checkpoint", whole(tmp_path / f"whole.{ending}")[:-100]):
            file.write_bytes(content)
            with pytest.raises(WeightsError, match=rf"cut.{ending} (is damaged|cannot be read)"):
                read_weights(file)

    def test_no_file_and_other_endings(self, tmp_path: Path) -> None:
        with pytest.raises(WeightsError, match="there is no file"):
            create("resnet8", classes=2, weights=tmp_path / "absent.pth")
        with pytest.raises(WeightsError, match=r"should be a .safetensors, .pth or .pt file, got '.bin'"):
            create("resnet8", classes=2, weights=tmp_path / "pytorch_model.bin")


class Attack:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.trace),)


def whole(file: Path) -> bytes:
    state: dict[str, Tensor] = {"weight": torch.randn(100)}
    return save(state, file).read_bytes()
