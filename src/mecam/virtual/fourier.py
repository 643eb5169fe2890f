"""Fourier amplitude mixing: keep an image's phase and mix in another's amplitude (Xu et al., CVPR 2021, FACT)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from mecam.hyperparameters import Hyperparameter
from mecam.virtual._domain import BLOCKS, Layers, P, VirtualDomain, layer_label, with_first_tensor
from mecam.virtual._draws import Draw

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def mix_amplitude(pixels: Tensor, lam: Tensor, partner: Tensor) -> Tensor:
    """Return images with amplitude (1 - lam) A(x) + lam A(x_j) and the phase of x; pixels are (B, C, H, W)."""
    spectrum = torch.fft.rfft2(pixels)
    amplitude = spectrum.abs()
    lam = lam[:, None, None, None]
    mixed = torch.polar((1 - lam) * amplitude + lam * amplitude[partner], spectrum.angle())
    image: Tensor = torch.fft.irfft2(mixed, s=pixels.shape[-2:])
    return image


class Fourier(VirtualDomain):
    """Amplitude mixing on the input images of a model; lam ~ U(0, eta) per sample.

    It acts on pixels in [0, 1]: `mean` and `std` undo the normalization before and redo it after, since subtracting a
    mean changes amplitude and phase at frequency zero; values outside [0, 1] are clipped. For images that are not
    normalized give zeros and ones. `domains` and `p` as in MixStyle. A batch of one sample is not changed.
    """

    name = "fourier"
    hyperparameters = {
        "p": P,
        "eta": Hyperparameter("largest share of the partner's amplitude", high=1, open_low=True),
        "domains": BLOCKS,
    }

    def __init__(
        self,
        p: float = 1.0,
        eta: float = 1.0,
        *,
        domains: int | None = None,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(p=p, generator=generator)
        self._check(eta=eta, domains=domains)
        if len(mean) != len(std):
            raise ValueError(f"mean and std must have one value per channel, got {len(mean)} and {len(std)}")
        if not all(0 < value < float("inf") for value in std):
            raise ValueError(f"std must be positive and finite, got {std!r}")
        self.eta, self.domains = eta, domains
        self.mean, self.std = tuple(mean), tuple(std)

    def attach(self, model: nn.Module, layers: Layers | None = None) -> Self:
        """Act on the first tensor that the model, or each of `layers`, is called with; return self."""
        for name, module in self._resolve(model, model if layers is None else layers):
            hook = _InputHook(self, name)
            self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        return self

    def _at_input(self, layer: str, x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[1] != len(self.mean):
            raise ValueError(
                f"{layer_label(layer)} was called with a tensor of shape {tuple(x.shape)}: Fourier needs images "
                f"(B, {len(self.mean)}, H, W), one channel per value of mean and std"
            )
        draw = self._draw(x, layer)
        return x if draw is None else self._apply(draw, x)

    def _mix(self, x: Tensor, draw: Draw) -> Tensor:
        count = x.shape[0]
        partner = draw.partner(count, self.domains)
        if count == 1:
            return x
        pixels = self._denormalise(x.to(draw.dtype))
        mixed = mix_amplitude(pixels, draw.uniform(count, self.eta), partner)
        return self._normalise(mixed.clamp(0, 1))

    # Per channel with Python numbers: copying a tensor of constants to the device would synchronize.
    def _denormalise(self, x: Tensor) -> Tensor:
        channels = zip(x.unbind(1), self.mean, self.std, strict=True)
        return torch.stack([channel * std + mean for channel, mean, std in channels], dim=1)

    def _normalise(self, pixels: Tensor) -> Tensor:
        channels = zip(pixels.unbind(1), self.mean, self.std, strict=True)
        return torch.stack([(channel - mean) / std for channel, mean, std in channels], dim=1)


@dataclass(frozen=True, eq=False)
class _InputHook:
    """A picklable forward pre-hook, inert unless its domain is active."""

    domain: Fourier
    layer: str

    def __call__(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.domain._on:
            return None
        change = partial(self.domain._at_input, self.layer)
        if args:
            return with_first_tensor(args, change, self.layer), kwargs
        return args, dict(zip(kwargs, with_first_tensor([*kwargs.values()], change, self.layer), strict=True))
