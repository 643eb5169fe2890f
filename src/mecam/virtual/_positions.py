"""Bring maps and tokens to one shape (B, C, L), with L positions per channel."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


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
