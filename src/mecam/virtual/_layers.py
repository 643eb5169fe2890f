"""Find a layer in a model, and bring its output, maps or tokens, to the shape (B, C, L), L positions per channel."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

import torch
from torch import Tensor, nn

# Attributes under which DDP, torch.compile, FSDP and activation checkpointing hold the wrapped module.
_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def find_layer(model: nn.Module, layer: str | nn.Module) -> tuple[str, nn.Module]:
    """Return the full name and the module of a layer given by either."""
    name, module = _find_name(model, layer) if isinstance(layer, str) else _find_module(model, layer)
    if isinstance(module, nn.ModuleList | nn.ModuleDict) and type(module).forward is nn.Module.forward:
        inside = ", ".join(f"{name}.{child}" for child, _ in module.named_children())
        raise ValueError(f"layer {name!r} is a list that is never called itself; attach to what is in it: {inside}")
    return name, module


def _find_module(model: nn.Module, layer: nn.Module) -> tuple[str, nn.Module]:
    if not isinstance(layer, nn.Module):
        raise TypeError(f"a layer is a name or a module, got {type(layer).__name__}: {layer!r}")
    for name, module in model.named_modules():
        if module is layer:
            return name, module
    raise ValueError(f"this {type(layer).__name__} is not part of the model ({type(model).__name__})")


def _find_name(model: nn.Module, layer: str) -> tuple[str, nn.Module]:
    modules = dict(model.named_modules(remove_duplicate=False))
    if layer in modules:
        return layer, modules[layer]
    matches = [name for name in modules if name and _unwrapped(name) == _unwrapped(layer)]
    # A wrapper and the wrapped module share their bare name; the innermost is the layer itself.
    if matches:
        name = max(matches, key=len)
        return name, modules[name]
    raise ValueError(f"the model has no layer {layer!r}; {_suggestion(layer, sorted(map(_unwrapped, modules)))}")


def _unwrapped(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _suggestion(layer: str, names: list[str]) -> str:
    ending = [name for name in names if name.endswith("." + layer)]
    near = list(dict.fromkeys([*ending, *get_close_matches(layer, names, n=5)]))
    if near:
        return f"near matches: {', '.join(near[:8])}"
    return f"its layers begin with: {', '.join(sorted({name.split('.')[0] for name in names if name}))}"


def count_prefix_tokens(model: nn.Module, name: str) -> int:
    """Return the number of tokens before the patches: the model's attribute (timm, DINOv2), else 1, a class token.

    timm models without the attribute and without a class token (MLP-Mixer, LeViT) have none.
    """
    prefix = _nearest(model, name, "num_prefix_tokens")
    if isinstance(prefix, int):
        return prefix
    registers = _nearest(model, name, "num_register_tokens")
    if isinstance(registers, int):
        return 1 + registers
    is_timm = _nearest(model, name, "pretrained_cfg") is not None
    return 0 if is_timm and _nearest(model, name, "cls_token") is None else 1


def ends_with_channels(model: nn.Module, name: str) -> bool:
    """Return whether maps are (B, H, W, C), by the attribute that timm's Swin, MambaOut and others have."""
    fmt = _nearest(model, name, "output_fmt")
    if fmt is None:  # SAM's encoder has it at its patch embedding alone
        fmt = getattr(_nearest(model, name, "patch_embed"), "output_fmt", None)
    return fmt == "NHWC" or _is_inside_torchvision_swin(model, name)


def _is_inside_torchvision_swin(model: nn.Module, name: str) -> bool:
    """Return whether the layer is one of a Swin of torchvision, which has no such attribute, after its convolution."""
    before, found, _ = f".{name}.".partition(".features.")
    swin = type(model.get_submodule(before[1:])) if found else object
    is_swin = (swin.__module__, swin.__name__) == ("torchvision.models.swin_transformer", "SwinTransformer")
    return is_swin and not isinstance(model.get_submodule(name), nn.Conv2d)


def _nearest(model: nn.Module, name: str, attribute: str) -> object:
    """Return an attribute of the layer, or of the closest enclosing module that has it."""
    parts = name.split(".") if name else []
    for depth in range(len(parts), -1, -1):
        value = getattr(model.get_submodule(".".join(parts[:depth])), attribute, None)
        if value is not None:
            return value
    return None


@dataclass(frozen=True)
class Layout:
    """The axes of tokens and maps, and the number of class and register tokens."""

    prefix_tokens: int
    batch_first: bool
    channels_last: bool = False  # maps (B, H, W, C)


def over_positions(x: Tensor, mix: Callable[[Tensor], Tensor], layout: Layout, layer: str) -> Tensor:
    """Apply `mix` to a map (B, C, H, W) or (B, H, W, C), or to the patch tokens of a sequence, as (B, C, L)."""
    if x.ndim == 4 and layout.channels_last:
        return mix(x.flatten(1, 2).mT).mT.reshape(x.shape).contiguous()
    if x.ndim == 4:
        mixed = mix(x.flatten(2)).view(x.shape)
        # flattening a channels-last map copies it; restore the layout for the next layer
        last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
        return mixed.contiguous(memory_format=torch.channels_last) if last else mixed
    if x.ndim == 3:
        return _over_patches(x, mix, layout, layer)
    raise ValueError(
        f"{layer} returned a tensor of shape {tuple(x.shape)}: a virtual domain needs maps (B, C, H, W) "
        "or tokens (B, N, C); attach to an earlier layer"
    )


def _over_patches(x: Tensor, mix: Callable[[Tensor], Tensor], layout: Layout, layer: str) -> Tensor:
    along = 1 if layout.batch_first else 0
    there, back = ((0, 2, 1), (0, 2, 1)) if layout.batch_first else ((1, 2, 0), (2, 0, 1))
    patches = x.shape[along] - layout.prefix_tokens
    if patches < 1:
        raise ValueError(
            f"{layer} returned {x.shape[along]} tokens (shape {tuple(x.shape)}), none beyond the "
            f"{layout.prefix_tokens} prefix tokens; give prefix_tokens or batch_first to attach()"
        )
    prefix = x.narrow(along, 0, layout.prefix_tokens)
    body = x.narrow(along, layout.prefix_tokens, patches).permute(there)
    return torch.cat([prefix, mix(body).permute(back)], dim=along)
