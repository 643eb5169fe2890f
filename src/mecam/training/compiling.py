"""Compile a backbone by torch.compile: its blocks where it repeats one, else the whole."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mecam.models._convolution import precision
from mecam.optim.registry import find as find_optimizer
from mecam.recipe import Recipe

# on a GPU their compiled steps were measured to be faster; folded ResNets and EfficientNets are slower compiled
BLOCKS = ("timm.models.vision_transformer.Block", "timm.models.convnext.ConvNeXtBlock")
STAGE = "timm.models.convnext.ConvNeXtStage"
LONG = 2000  # passes of a run that save the seconds it takes to compile


def compile_backbone(recipe: Recipe, featurizer: nn.Module, *, captured: bool) -> bool:
    """Compile a backbone if the recipe asks for it, or if it pays in a captured run; return whether it was compiled."""
    blocks = [each for each in featurizer.modules() if _name(each) in BLOCKS]
    pays = captured and bool(blocks) and recipe.steps * find_optimizer(recipe.optimizer).passes >= LONG
    if recipe.compile == "never" or (recipe.compile == "auto" and not pays):
        return False
    if not blocks:
        torch.compiler.reset()  # code compiled in an earlier run of this process would skip a virtual domain's hooks
    for module in blocks or [featurizer]:
        module.compile(dynamic=False)  # equal blocks are compiled once
    for module in featurizer.modules() if blocks else ():
        if type(module) is nn.Conv2d and _tiles(module):
            module.__class__ = Tiles
        if _name(module) == STAGE and getattr(cast("Any", module).blocks[0], "gamma", None) is not None:
            cast("nn.Module", module.downsample).register_forward_hook(_widen)
    return True


def _name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _widen(_module: nn.Module, _inputs: object, x: Tensor) -> Tensor:
    """Give the first block of a stage float32, as the others get by the layer scale of the block before.

    Then all blocks of a stage are compiled once.
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))


class Tiles(nn.Conv2d):
    """A convolution whose windows tile the map, such as a patch embedding, as a matrix product.

    Buys: MeCAM's step with ViT-B/16 takes 88.4 instead of 91.1 ms on an H200 (benchmarks/results/gpu_compile.md).
    """

    def forward(self, x: Tensor) -> Tensor:
        (rows, columns), (height, width) = self.kernel_size, x.shape[2:]
        down, across = height // rows, width // columns
        x = x[:, :, : down * rows, : across * columns].to(precision(x)).permute(0, 2, 3, 1)
        tiles = x.reshape(len(x), down, rows, across, columns, -1).transpose(2, 3).flatten(3)
        return F.linear(tiles, self.weight.permute(0, 2, 3, 1).flatten(1), self.bias).permute(0, 3, 1, 2)


def _tiles(conv: nn.Conv2d) -> bool:
    plain = conv.groups == 1 and set(conv.dilation) == {1} and conv.padding in ("valid", (0, 0))
    return plain and conv.kernel_size == conv.stride != (1, 1)


def is_compiled(network: nn.Module) -> bool:
    """Return whether a part of the network was compiled in place."""
    return any(module._compiled_call_impl is not None for module in network.modules())
