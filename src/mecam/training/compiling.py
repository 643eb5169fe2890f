"""Compile a backbone by torch.compile: its blocks where it repeats one, else the whole."""

from __future__ import annotations

import torch
from torch import nn

from mecam.optim.registry import find as find_optimizer
from mecam.recipe import Recipe

# on a GPU their compiled steps were measured to be faster; folded ResNets and EfficientNets are slower compiled
BLOCKS = ("timm.models.vision_transformer.Block", "timm.models.convnext.ConvNeXtBlock")
LONG = 2000  # passes of a run that save the seconds it takes to compile


def compile_backbone(recipe: Recipe, featurizer: nn.Module, *, captured: bool) -> bool:
    """Compile a backbone if the recipe asks for it, or if it pays in a captured run; return whether it was compiled."""
    blocks = [each for each in featurizer.modules() if f"{type(each).__module__}.{type(each).__qualname__}" in BLOCKS]
    pays = captured and bool(blocks) and recipe.steps * find_optimizer(recipe.optimizer).passes >= LONG
    if recipe.compile == "never" or (recipe.compile == "auto" and not pays):
        return False
    if not blocks:
        torch.compiler.reset()  # code compiled in an earlier run of this process would skip a virtual domain's hooks
    for module in blocks or [featurizer]:
        module.compile(dynamic=False)  # equal blocks are compiled once
    return True


def is_compiled(network: nn.Module) -> bool:
    """Return whether a part of the network was compiled in place."""
    return any(module._compiled_call_impl is not None for module in network.modules())
