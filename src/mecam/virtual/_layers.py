"""Find a layer in a model, and the layout of its output."""

from difflib import get_close_matches

from torch import nn

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


def prefix_tokens(model: nn.Module, name: str) -> int:
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
    return fmt == "NHWC"


def _nearest(model: nn.Module, name: str, attribute: str) -> object:
    """Return an attribute of the layer, or of the closest enclosing module that has it."""
    parts = name.split(".") if name else []
    for depth in range(len(parts), -1, -1):
        value = getattr(model.get_submodule(".".join(parts[:depth])), attribute, None)
        if value is not None:
            return value
    return None
