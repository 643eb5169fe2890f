"""Any model of timm by its name there."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from torch import nn

from mecam._torchvision import repair_torchvision
from mecam.models.network import Backbone, Normalization, virtual_domain_stages


def build(name: str, *, pretrained: bool) -> Backbone:
    """timm's model `name` ("resnet50.tv_in1k") without its classifier; `pretrained` weights are downloaded by timm."""
    timm = _timm(name)
    architecture, _, tag = name.partition(".")
    if ":" in name or not timm.is_model(architecture):  # hf-hub:... would fetch a description of the model from there
        near = get_close_matches(architecture, timm.list_models(), n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(near)}?" if near else "timm.list_models() shows what there is"
        raise ValueError(f"timm {timm.__version__} has no model {name!r}; {hint}")
    tags = [full.partition(".")[2] for full in timm.list_pretrained(f"{architecture}.*")]
    if tag and tag not in tags:
        has = ", ".join(tags) or "none"
        raise ValueError(f"timm {timm.__version__} has no weights {tag!r} of {architecture}; it has {has}")
    try:
        model = timm.create_model(name, pretrained=pretrained, num_classes=0)
    except Exception as error:
        raise ValueError(
            f"timm could not create {name!r}{' with its pretrained weights' if pretrained else ''} "
            f"({type(error).__name__}: {error})"
            + ("; without a network, give the checkpoint as a file: weights=..." if pretrained else "")
        ) from error
    config = model.pretrained_cfg
    classifier = config.get("classifier") or ()
    return Backbone(
        featurizer=model,
        num_features=getattr(model, "head_hidden_size", model.num_features),
        stages=stages(model),
        classifier=(classifier,) if isinstance(classifier, str) else tuple(classifier),
        normalization=Normalization(tuple(config["mean"]), tuple(config["std"])),
        image_size=config["input_size"][-1],
    )


def stages(model: nn.Module) -> tuple[str, ...]:
    """Layers for virtual domains: three resolutions before the final one, or the ends of the first two thirds.

    Vision transformers keep one resolution; in their last block, as in a ResNet's last stage, style is class.
    """
    modules = dict(model.named_modules())
    steps: Iterable[dict[str, Any]] = getattr(model, "feature_info", None) or ()
    info = [step for step in steps if step["module"] in modules]
    ends = {step["reduction"]: step["module"] for step in info}
    if len(ends) > 1:
        return virtual_domain_stages(list(ends.values()))
    blocks = [step["module"] for step in info]
    if len(blocks) < 3:
        return ()
    return blocks[len(blocks) // 3 - 1], blocks[2 * len(blocks) // 3 - 1]


def _timm(name: str) -> ModuleType:
    repair_torchvision()
    try:
        import timm
    except Exception as error:  # a torchvision that cannot be repaired raises RuntimeError
        raise ImportError(
            f"the backbone timm/{name} needs timm, which cannot be imported ({type(error).__name__}: {error}): "
            "pip install 'mecam[timm]'"
        ) from error
    return timm


__all__ = ["build", "stages"]
