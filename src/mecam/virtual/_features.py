"""Virtual domains that act on a layer's output: maps of a convolutional network, tokens of a transformer."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from torch import Tensor, nn

from mecam.virtual._domain import Layers, VirtualDomain, spoken, with_first_tensor
from mecam.virtual._layers import ends_with_channels
from mecam.virtual._layers import prefix_tokens as tokens_before_patches
from mecam.virtual._positions import Layout, over_positions


class FeatureDomain(VirtualDomain):
    """A virtual domain made of the features of one or more layers."""

    def attach(
        self,
        model: nn.Module,
        layers: Layers,
        *,
        prefix_tokens: int | None = None,
        batch_first: bool = True,
        channels_last: bool | None = None,
    ) -> Self:
        """Act on the output of `layers`, given by dotted name or as modules; returns self.

        A 4-D output is a map (B, C, H, W), a 3-D output a token sequence (B, N, C); of a tuple or list, the first
        tensor counts. Names need no `module.` or `_orig_mod.` of a wrapper. Class and register tokens, the first
        `prefix_tokens`, stay untouched: None asks the model (`num_prefix_tokens` in timm, 1 + `num_register_tokens` in
        DINOv2) and else assumes 1. Give 0 for layers before the class token is added (a patch embedding) and for
        models without one. `batch_first=False` reads (N, B, C), the layout inside OpenAI's and older OpenCLIP towers.
        `channels_last=True` reads maps (B, H, W, C), as Swin has them: None asks the model (`output_fmt` in timm) and
        else assumes (B, C, H, W). It is about the order of the axes, not torch's memory format.
        """
        if prefix_tokens is not None and prefix_tokens < 0:
            raise ValueError(f"prefix_tokens must be 0 or more, or None to ask the model, got {prefix_tokens!r}")
        found = self._resolve(model, layers)
        for name, module in found:
            count = tokens_before_patches(model, name) if prefix_tokens is None else prefix_tokens
            last = ends_with_channels(model, name) if channels_last is None else channels_last
            hook = _OutputHook(self, name, Layout(count, batch_first, last))
            self._handles.append(module.register_forward_hook(hook))
        return self

    def _at_layer(self, layer: str, layout: Layout, x: Tensor) -> Tensor:
        draw = self._draw(x, layer)
        return x if draw is None else over_positions(x, partial(self._apply, draw), layout, spoken(layer))


@dataclass(frozen=True, eq=False)
class _OutputHook:
    """A forward hook that can be pickled, and that only its domain's switch wakes."""

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
            f"{spoken(self.layer)} returned a {type(output).__name__}: a virtual domain needs a tensor, "
            "or a tuple or list with one; attach to a layer inside it"
        )
