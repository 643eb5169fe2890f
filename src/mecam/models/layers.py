"""The layers of a backbone, from the head down to the stem, and the modules that are its blocks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import nn

UNKNOWN = (
    "the blocks of this backbone are not known; take a ResNet, an EfficientNet-Lite or a model of timm that has "
    "group_matcher, or give your featurizer an attribute `blocks`, the names of its blocks from the stem up"
)


def has_layers(featurizer: nn.Module) -> bool:
    """Return whether the layers of this featurizer are known."""
    return hasattr(featurizer, "group_matcher") or bool(_names(featurizer, "blocks"))


def depths(featurizer: nn.Module, *, stages: bool = False) -> dict[str, int]:
    """Return how many layers below the head each parameter is, by name: 1 in the last block, most in the stem.

    A parameter outside the blocks counts with the block before it. Models of timm have the layers of timm's own
    layer-wise decay, in which a norm after the pooling counts with the head, 0.

    Args:
        stages: count groups of blocks, where there are some, such as layer4 of a ResNet.
    """
    if hasattr(featurizer, "group_matcher"):
        return _of_timm(featurizer, stages)
    if not has_layers(featurizer):
        raise ValueError(UNKNOWN)
    blocks, ends = _names(featurizer, "blocks"), _names(featurizer, "groups") if stages else []
    number, numbers = 0, dict[str, int]()
    for name, _ in featurizer.named_parameters():
        number = next((at for at, block in enumerate(blocks, 1) if _inside(name, block)), number)
        numbers[name] = number
    if ends:  # the last block of each group, or the group itself
        last = [max(at for at, block in enumerate(blocks, 1) if _inside(f"{block}.", end)) for end in ends]
        numbers = {name: at and 1 + sum(at > end for end in last) for name, at in numbers.items()}
    top = max(numbers.values()) + 1
    return {name: top - at for name, at in numbers.items()}


def blocks_of(featurizer: nn.Module) -> list[nn.Module]:
    """Return the blocks of this featurizer: the largest modules whose parameters are of one layer, without the stem."""
    below = depths(featurizer)
    stem = max(below.values())

    def find(module: nn.Module, prefix: str) -> list[nn.Module]:
        inside = {depth for name, depth in below.items() if name.startswith(prefix)}
        if len(inside) == 1 and inside.isdisjoint({0, stem}) and not isinstance(module, nn.ModuleList):
            return [module] if any(module.children()) else []
        return [block for name, child in module.named_children() for block in find(child, f"{prefix}{name}.")]

    return find(featurizer, "")


def _of_timm(model: Any, stages: bool) -> dict[str, int]:
    from timm.models import group_parameters

    classifier = model.pretrained_cfg.get("classifier") or "head"
    head = f"{classifier if isinstance(classifier, str) else classifier[0]}.weight"  # which the backbone does not have
    names = [*(name for name, _ in model.named_parameters()), head]
    whole: Any = SimpleNamespace(named_parameters=lambda: [(name, None) for name in names])
    numbers = group_parameters(whole, model.group_matcher(coarse=stages), reverse=True)
    return {name: numbers[head] - numbers[name] for name in names[:-1]}


def _names(featurizer: nn.Module, attribute: str) -> list[str]:
    names = getattr(featurizer, attribute, None)
    return list(names) if isinstance(names, (list, tuple)) else []


def _inside(name: str, module: str) -> bool:
    return name.startswith(f"{module}.")
