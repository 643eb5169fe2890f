"""LoRA (Hu et al., 2022) through peft: train W + B A, of which W is frozen and B A has a low rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mecam.models.network import Network

ADAPTER = "default"  # peft's name of the adapter
BASE = ".base_layer."


def adapt(network: Network, rank: int) -> None:
    """Freeze the featurizer, and add adapters to its linear layers, initialised from torch's generator.

    B starts at zero, so the function stays the same. A layer whose weight is read without calling it is left out.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ImportError("trainable=lora needs peft: pip install 'mecam[lora]'") from error
    names = _called(network)
    if not names:
        raise ValueError(
            "trainable=lora adapts linear layers, and this backbone has none; take a transformer such as "
            "timm/vit_base_patch16_224, or trainable=last or norms"
        )
    featurizer = network.featurizer.requires_grad_(False)
    # alpha = rank: the adapted weight is W + B A itself
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=rank, target_modules=names), featurizer)


def merged(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state of the plain network: W + B A in place of W, A and B. Other states stay as they are."""
    plain: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        a, b = (weights.get(name.replace(f"{BASE}weight", f".lora_{part}.{ADAPTER}.weight")) for part in "AB")
        if BASE in name and a is not None and b is not None and name.endswith(".weight"):
            tensor = torch.addmm(tensor, b.to(tensor), a.to(tensor))
        if f".{ADAPTER}." not in name or ".lora_" not in name:
            plain[name.replace(BASE, ".")] = tensor
    return plain


def remove_adapters(network: nn.Module) -> None:
    """Put the linear layers back in the place of the adapted ones, with the weights W."""
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(base := getattr(child, "base_layer", None), nn.Linear):
                setattr(parent, name, base)


def _called(network: Network) -> list[str]:
    """Return the names of the linear layers that run in a forward pass of one black image."""
    linear: dict[nn.Module, str] = {m: name for name, m in network.featurizer.named_modules() if type(m) is nn.Linear}
    called: set[str] = set()

    def note(module: nn.Module, *_: Any) -> None:
        called.add(linear[module])

    handles = [module.register_forward_hook(note) for module in linear]
    weight, size, training = network.head.weight, network.preprocessing.size, network.training
    with torch.no_grad():
        network.eval().pooled(weight.new_zeros(1, 3, size, size))
    network.train(training)
    for handle in handles:
        handle.remove()
    return [name for name in linear.values() if name in called]
