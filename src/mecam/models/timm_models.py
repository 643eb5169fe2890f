"""Backbones from timm, by their names in timm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import ModuleType
from typing import Any

import torch
from torch import nn

from mecam._torchvision import repair_torchvision
from mecam.models.network import Backbone, virtual_domain_stages
from mecam.preprocessing import Preprocessing

HUB = "hf-hub:"


def build(
    name: str, *, pretrained: bool, image_size: int | None = None, settings: Mapping[str, Any] | None = None
) -> Backbone:
    """Return timm's model `name` ("resnet50.tv_in1k", "hf-hub:timm/resnet18.a1_in1k") without its classifier.

    Args:
        pretrained: start from the weights that timm downloads.
        image_size: build models of a fixed size for this one; an error where a model does not support it.
        settings: arguments of the model's constructor.
    """
    timm = _timm(name)
    _check_name(timm, name)
    chosen: dict[str, Any] = {"pretrained": pretrained, "num_classes": 0, **(settings or {})}
    try:
        model = _create(timm, name, chosen, image_size)
        offline = _offline(timm, name, settings or {}) if name.startswith(HUB) else None
    except Exception as error:
        raise _creation_error(timm, name, chosen, image_size, error) from error
    config = model.pretrained_cfg
    own = config["input_size"][-1]
    if image_size not in (None, own):
        _try(model, name, image_size, own)
    classifier = config.get("classifier") or ()
    return Backbone(
        featurizer=model,
        num_features=getattr(model, "head_hidden_size", model.num_features),
        stages=stages(model),
        classifier=(classifier,) if isinstance(classifier, str) else tuple(classifier),
        preprocessing=Preprocessing(
            own if image_size is None else image_size,
            tuple(config["mean"]),
            tuple(config["std"]),
            "bicubic" if config.get("interpolation") == "bicubic" else "bilinear",
        ),
        offline=offline,
    )


def _create(timm: ModuleType, name: str, chosen: dict[str, Any], image_size: int | None) -> Any:
    if image_size is not None:
        try:
            return timm.create_model(name, img_size=image_size, **chosen)
        except TypeError as error:  # models without that setting take any size, or fail in `_try`
            if "img_size" not in str(error):
                raise
    return timm.create_model(name, **chosen)


def _try(model: nn.Module, name: str, image_size: int, own: int) -> None:
    """Refuse an image size that the model fails on."""
    training = model.training
    try:
        with torch.no_grad():
            model.eval()(next(model.parameters()).new_zeros(1, 3, image_size, image_size))
    except Exception as error:  # timm asserts, and torch raises on shapes
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"timm's {name} cannot take image_size={image_size} ({reason}); {_sizes(model, own)}"
        ) from error
    finally:
        model.train(training)


def _sizes(model: nn.Module, own: int) -> str:
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    multiples = f", or try another multiple of {patch[0]}" if isinstance(patch, tuple) else ""
    return f"its own size is {own}{multiples}"


def _offline(timm: ModuleType, name: str, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name and settings with which timm builds a Hub model without network access."""
    _, architecture, described = timm.models.load_model_config_from_hf(name.removeprefix(HUB))
    chosen = {**described, **settings}
    return architecture, {key: value for key, value in chosen.items() if key not in ("num_classes", "img_size")}


def _creation_error(
    timm: ModuleType, name: str, chosen: Mapping[str, Any], image_size: int | None, error: Exception
) -> ValueError:
    """Return an error with the cause and what to do."""
    cause = f"{type(error).__name__}: {' '.join(str(error).split())}"
    hub = name.startswith(HUB)
    if image_size is not None and not hub and (isinstance(error, AssertionError) or not chosen["pretrained"]):
        own = timm.get_pretrained_cfg(name).input_size[-1]
        return ValueError(f"timm's {name} cannot take image_size={image_size} ({cause}); its own size is {own}")
    if hub:
        return ValueError(
            f"timm could not create {name!r} ({cause}); without a network, give the architecture and the checkpoint as "
            "a file (--backbone timm/<name> --weights FILE)"
        )
    if chosen["pretrained"]:
        return ValueError(
            f"timm could not create {name!r} with its pretrained weights ({cause}); without a network, give the "
            "checkpoint as a file (--weights FILE), or train from scratch (--no-pretrained)"
        )
    return ValueError(f"timm could not create {name!r} ({cause})")


def _check_name(timm: ModuleType, name: str) -> None:
    if name.startswith(HUB):
        if not name.removeprefix(HUB).strip("/").count("/"):
            raise ValueError(f"{name!r} is not a Hugging Face Hub model name; write {HUB}<organization>/<name>")
        return
    architecture, _, tag = name.partition(".")
    if ":" in name or not timm.is_model(architecture):
        near = get_close_matches(architecture, timm.list_models(), n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(near)}?" if near else "timm.list_models() shows what there is"
        raise ValueError(f"timm {timm.__version__} has no model {name!r}; {hint}")
    tags = [full.partition(".")[2] for full in timm.list_pretrained(f"{architecture}.*")]
    if tag and tag not in tags:
        has = ", ".join(tags) or "none"
        raise ValueError(f"timm {timm.__version__} has no weights {tag!r} of {architecture}; it has {has}")


def stages(model: nn.Module) -> tuple[str, ...]:
    """Return the layers for virtual domains: three resolutions before the final one, or two blocks in a transformer.

    Vision transformers keep one resolution; the blocks at one and two thirds of their depth are taken.
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
    shown = name if name.startswith(HUB) else f"timm/{name}"
    try:
        import timm
    except Exception as error:  # a torchvision that cannot be repaired raises RuntimeError
        raise ImportError(
            f"the backbone {shown} needs timm, which cannot be imported ({type(error).__name__}: {error}): "
            "pip install 'mecam[timm]'"
        ) from error
    return timm
