"""Fold the frozen batch norms of a network into its convolutions, also in networks of timm and torchvision."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mecam.models.folding import NONE, RELU, RELU6, SameConv2d, conv_bn, conv_bn_pool, folds


class Order(NamedTuple):
    """A method that runs these children one after the other.

    With `act` it adds the shortcut of a residual block and applies this child.
    """

    children: str
    method: str = "forward"
    act: str = ""


ORDERS = {
    "timm.models.resnet.ResNet": Order("conv1 bn1 act1 maxpool layer1 layer2 layer3 layer4", "forward_features"),
    "timm.models.resnet.BasicBlock": Order("conv1 bn1 drop_block act1 aa conv2 bn2 se drop_path", act="act2"),
    "timm.models.resnet.Bottleneck": Order(
        "conv1 bn1 act1 conv2 bn2 drop_block act2 aa conv3 bn3 se drop_path", act="act3"
    ),
    "timm.models.efficientnet.EfficientNet": Order("conv_stem bn1 blocks conv_head bn2", "forward_features"),
    "timm.models._efficientnet_blocks.ConvBnAct": Order("conv bn1 aa"),
    "timm.models._efficientnet_blocks.DepthwiseSeparableConv": Order("conv_s2d bn_s2d conv_dw bn1 aa se conv_pw bn2"),
    "timm.models._efficientnet_blocks.InvertedResidual": Order(
        "conv_s2d bn_s2d conv_pw bn1 conv_dw bn2 aa se conv_pwl bn3"
    ),
    "timm.models._efficientnet_blocks.EdgeResidual": Order("conv_exp bn1 aa se conv_pwl bn2"),
    "torchvision.models.resnet.ResNet": Order(
        "conv1 bn1 relu maxpool layer1 layer2 layer3 layer4 avgpool flatten fc", "_forward_impl"
    ),
    "torchvision.models.resnet.BasicBlock": Order("conv1 bn1 relu conv2 bn2", act="relu"),
    "torchvision.models.resnet.Bottleneck": Order("conv1 bn1 relu conv2 bn2 relu conv3 bn3", act="relu"),
}
SEQUENTIAL = Order("")  # all of its children
FLATTEN = nn.Flatten()
BOUNDS = {nn.ReLU: RELU, nn.ReLU6: RELU6}


def fold_frozen(network: nn.Module) -> None:
    """Fold batch norms in eval mode into the convolutions before them, in place.

    The function and its parameters stay the same; a step takes less memory traffic. Batch norms in training mode
    run as before, and so do layers with hooks. On GPUs with Triton derivatives are first ones only.

    It applies to the backbones of this package, to ResNets and EfficientNets of timm and torchvision, and to every
    `nn.Sequential` of a convolution without bias and a batch norm. Other layers stay as they are.

    Args:
        network: the network. Its state_dict does not change.

    Example:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        fold_frozen(model)
    """
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module.folds = True  # type: ignore[assignment]
        order = ORDERS.get(f"{type(module).__module__}.{type(module).__qualname__}")
        if order is None and isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
            pairs = pairwise(module)
            order = SEQUENTIAL if any(isinstance(b, _BatchNorm) for a, b in pairs if isinstance(a, nn.Conv2d)) else None
        if order is not None:
            setattr(module, order.method, partial(_run, module, order))


def _run(module: Any, order: Order, x: Tensor) -> Tensor:
    names = order.children.split()
    children = _present(module if order == SEQUENTIAL else (_child(module, name) for name in names))
    if getattr(module, "grad_checkpointing", False) or not any(_fold(*pair) for pair in pairwise(children)):
        unchanged: Tensor = getattr(type(module), order.method)(module, x)
        return unchanged
    if order.act:
        shortcut = x if module.downsample is None else module.downsample(x)
        return _add(children, x, shortcut, getattr(module, order.act))
    if getattr(module, "has_skip", None) is True:
        return _add([*children, *_present([module.drop_path])], x, x, None)
    return _chain(children, x)


def _add(modules: list[Any], x: Tensor, shortcut: Tensor, act: nn.Module | None) -> Tensor:
    """Return act(modules(x) + shortcut)."""
    *before, conv, bn = modules
    bound = NONE if act is None else _bound(act)
    if _fold(conv, bn) and not _inside(bn) and bound is not None:
        return conv_bn(_chain(before, x), conv, bn, bound, shortcut)
    x = _chain(modules, x) + shortcut
    return x if act is None else act(x)


def _chain(modules: list[Any], x: Tensor) -> Tensor:
    """Run modules one after the other, and fold each batch norm, activation and pooling into its convolution."""
    while modules:
        first, *modules = modules
        if not modules or not _fold(first, modules[0]):
            x = first(x)
            continue
        bn, *modules = modules
        modules = [*_inside(bn), *modules]
        bound = _bound(modules[0]) if modules else None
        if bound is None:
            x = conv_bn(x, first, bn, NONE)
            continue
        modules = modules[1:]
        if modules and type(modules[0]) is nn.MaxPool2d and _unobserved(modules[0]):
            pool, *modules = modules
            x = conv_bn_pool(x, first, bn, pool, bound)
        else:
            x = conv_bn(x, first, bn, bound)
    return x


def _child(module: nn.Module, name: str) -> nn.Module | None:
    return FLATTEN if name == "flatten" else getattr(module, name, None)


def _present(modules: Iterable[nn.Module | None]) -> list[Any]:
    return [module for module in modules if module is not None and type(module) is not nn.Identity]


def _inside(bn: nn.Module) -> list[Any]:
    """Return the layers inside timm's BatchNormAct2d."""
    return _present(getattr(bn, name, None) for name in ("drop", "act"))


def _fold(conv: Any, bn: Any) -> bool:
    """Return whether this pair of layers is folded now."""
    if type(conv) not in (nn.Conv2d, SameConv2d) or conv.bias is not None or conv.padding_mode != "zeros":
        return False
    known = type(bn) is nn.BatchNorm2d or (isinstance(bn, nn.BatchNorm2d) and type(bn).__name__ == "BatchNormAct2d")
    return (
        known
        and folds(bn)
        and bn.running_mean is not None
        and isinstance(conv.padding, tuple)
        and _unobserved(conv)
        and _unobserved(bn)
    )


def _bound(act: nn.Module) -> float | None:
    """Return the upper bound of an activation that a folded convolution can apply."""
    return BOUNDS.get(type(act)) if _unobserved(act) else None


def _unobserved(module: nn.Module) -> bool:
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return not any(hooks)
