"""Virtual domains on a layer's output: maps of a convolutional network, or tokens of a transformer."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from mecam.hyperparameters import Hyperparameter
from mecam.virtual._domain import BLOCKS, Layers, P, VirtualDomain, layer_label, with_first_tensor
from mecam.virtual._layers import Layout, count_prefix_tokens, ends_with_channels, over_positions


class FeatureDomain(VirtualDomain):
    """A virtual domain that changes the features of one or more layers."""

    def attach(
        self,
        model: nn.Module,
        layers: Layers,
        *,
        prefix_tokens: int | None = None,
        batch_first: bool = True,
        channels_last: bool | None = None,
    ) -> Self:
        """Act on the output of `layers`, given by dotted name or as modules; return self.

        A 4-D output is a map (B, C, H, W), a 3-D output a token sequence (B, N, C); in a tuple or list, the first
        tensor is used. Names need no `module.` or `_orig_mod.` of a wrapper. Class and register tokens, the first
        `prefix_tokens`, stay untouched: None asks the model (`num_prefix_tokens` in timm, 1 + `num_register_tokens` in
        DINOv2) and else assumes 1. Give 0 for layers before the class token is added (a patch embedding) and for
        models without one. `batch_first=False` reads (N, B, C), the layout inside OpenAI's and older OpenCLIP towers.
        `channels_last=True` reads maps (B, H, W, C), as Swin has them: None asks the model (`output_fmt` in timm),
        knows torchvision's Swin, and else assumes (B, C, H, W). This is the order of the axes, not torch's memory
        format.
        """
        if prefix_tokens is not None and prefix_tokens < 0:
            raise ValueError(f"prefix_tokens must be 0 or more, or None to ask the model, got {prefix_tokens!r}")
        for name, module in self._resolve(model, layers):
            count = count_prefix_tokens(model, name) if prefix_tokens is None else prefix_tokens
            last = ends_with_channels(model, name) if channels_last is None else channels_last
            hook = _OutputHook(self, name, Layout(count, batch_first, last))
            self._handles.append(module.register_forward_hook(hook))
        return self

    def _at_layer(self, layer: str, layout: Layout, x: Tensor) -> Tensor:
        draw = self._draw(x, layer)
        return x if draw is None else over_positions(x, partial(self._apply, draw), layout, layer_label(layer))


class PartnerDomain(FeatureDomain):
    """A virtual domain that mixes every sample with a partner, by a weight from Beta(alpha, alpha)."""

    hyperparameters = {
        "p": P,
        "alpha": Hyperparameter("parameter of Beta(alpha, alpha), which the mixing weights follow", open_low=True),
        "domains": BLOCKS,
    }

    def __init__(
        self,
        p: float = 1.0,
        alpha: float = 0.1,
        *,
        domains: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(p=p, generator=generator)
        self._check(alpha=alpha, domains=domains)
        self.alpha, self.domains = alpha, domains


@dataclass(frozen=True, eq=False)
class _OutputHook:
    """A picklable forward hook, inert unless its domain is active."""

    domain: FeatureDomain
    layer: str
    layout: Layout

    def __call__(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        if not self.domain._on:
            return None
        change = partial(self.domain._at_layer, self.layer, self.layout)
        if isinstance(output, Tensor):
            return change(output)
        if isinstance(output, tuple | list):
            return with_first_tensor(output, change, self.layer)
        raise TypeError(
            f"{layer_label(self.layer)} returned a {type(output).__name__}: a virtual domain needs a tensor, "
            "or a tuple or list with one; attach to a layer inside it"
        )
