import cmath
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mecam.virtual import Fourier
from mecam.virtual.fourier import IMAGENET_MEAN, IMAGENET_STD, mix_amplitude

Grid = list[list[complex]]


def transform(image: Grid, sign: int) -> Grid:
    """The discrete Fourier transform by its definition, not scaled."""
    height, width = len(image), len(image[0])
    return [
        [
            sum(
                image[y][x] * cmath.exp(sign * 2j * math.pi * (u * y / height + v * x / width))
                for y in range(height)
                for x in range(width)
            )
            for v in range(width)
        ]
        for u in range(height)
    ]


def mix_by_loops(pixels: Tensor, lam: Tensor, partner: Tensor) -> Tensor:
    out = torch.empty_like(pixels)
    height, width = pixels.shape[-2:]
    for i in range(pixels.shape[0]):
        weight = float(lam[i])
        for c in range(pixels.shape[1]):
            own, other = (transform(pixels[k, c].tolist(), -1) for k in (i, int(partner[i])))
            mixed = [
                [
                    cmath.rect((1 - weight) * abs(a) + weight * abs(b), cmath.phase(a))
                    for a, b in zip(row, other_row, strict=True)
                ]
                for row, other_row in zip(own, other, strict=True)
            ]
            image = transform(mixed, 1)
            scaled = [[value.real / (height * width) for value in row] for row in image]
            out[i, c] = torch.tensor(scaled, dtype=pixels.dtype)
    return out


def normalise(pixels: Tensor) -> Tensor:
    mean, std = (torch.tensor(values, dtype=pixels.dtype)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))
    return (pixels - mean) / std


def switched_on(domain: Fourier, x: Tensor) -> Tensor:
    model = nn.Identity()
    domain.attach(model)
    with domain.active():
        out: Tensor = model(x)
    return out


@given(height=st.integers(1, 5), width=st.integers(1, 5), seed=st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_formula_equals_the_transform_by_its_definition(height: int, width: int, seed: int) -> None:
    torch.manual_seed(seed)
    pixels = torch.rand(3, 2, height, width, dtype=torch.float64)
    lam, partner = torch.rand(3, dtype=torch.float64), torch.tensor([2, 0, 1])
    torch.testing.assert_close(
        mix_amplitude(pixels, lam, partner), mix_by_loops(pixels, lam, partner), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("size", [(8, 8), (7, 5)])
def test_weight_one_has_the_partners_amplitude_and_the_samples_phase(size: tuple[int, int]) -> None:
    pixels = torch.rand(4, 3, *size, dtype=torch.float64)
    partner = torch.tensor([1, 2, 3, 0])
    spectrum = torch.fft.fft2(pixels)
    mixed = torch.fft.fft2(mix_amplitude(pixels, torch.ones(4), partner))
    torch.testing.assert_close(mixed.abs(), spectrum[partner].abs())
    torch.testing.assert_close(torch.polar(torch.ones_like(mixed.abs()), mixed.angle()), spectrum / spectrum.abs())


def test_weight_zero_keeps_the_image() -> None:
    pixels = torch.rand(4, 3, 8, 8, dtype=torch.float64)
    mixed = mix_amplitude(pixels, torch.zeros(4), torch.tensor([1, 2, 3, 0]))
    torch.testing.assert_close(mixed, pixels, rtol=1e-12, atol=1e-12)


def test_normalisation_is_undone_before_and_redone_after() -> None:
    pixels = torch.rand(4, 3, 8, 8, dtype=torch.float64)
    torch.manual_seed(1)
    plain = switched_on(Fourier(mean=(0, 0, 0), std=(1, 1, 1)), pixels)
    torch.manual_seed(1)
    torch.testing.assert_close(switched_on(Fourier(), normalise(pixels)), normalise(plain))
    assert not torch.allclose(plain, pixels, atol=1e-2)


def test_pixels_are_clipped_to_their_range() -> None:
    pixels = (torch.rand(8, 3, 8, 8) > 0.5).float() * torch.linspace(0.1, 1, 8)[:, None, None, None]
    out = switched_on(Fourier(mean=(0, 0, 0), std=(1, 1, 1)), pixels)
    assert out.min() == 0
    assert out.max() == 1


def test_weights_are_one_a_sample_and_stay_below_eta() -> None:
    # Flat images have amplitude at frequency zero alone, so the new brightness tells the weight.
    brightness = torch.tensor([0.2, 0.8], dtype=torch.float64)
    model = nn.Identity()
    domain = Fourier(eta=0.5, domains=2, mean=(0,), std=(1,)).attach(model)
    weights = []
    for _ in range(300):
        with domain.active():
            new = model(brightness[:, None, None, None].expand(2, 1, 4, 4)).mean((1, 2, 3))
        weights.append((new - brightness) / (brightness.flip(0) - brightness))
    lam = torch.stack(weights)
    assert lam.min() >= 0
    assert 0.48 < lam.max() <= 0.5
    assert abs(float(lam.mean()) - 0.25) < 0.025
    assert (lam[:, 0] != lam[:, 1]).all()


def test_one_sample_stays_as_it_is() -> None:
    x = torch.randn(1, 3, 8, 8) * 5
    assert torch.equal(switched_on(Fourier(), x), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_the_single_precision_result_rounded(dtype: torch.dtype) -> None:
    x = normalise(torch.rand(4, 3, 6, 6)).to(dtype)
    torch.manual_seed(1)
    half = switched_on(Fourier(), x)
    torch.manual_seed(1)
    assert half.dtype == dtype
    assert torch.equal(half, switched_on(Fourier(), x.float()).to(dtype))


def test_inert_unless_active_and_after_detach() -> None:
    model = nn.Conv2d(3, 4, 3)
    x = normalise(torch.rand(4, 3, 8, 8))
    before = model(x)
    domain = Fourier().attach(model)
    assert torch.equal(model(x), before)
    with domain.active():
        assert not torch.allclose(model(x), before)
    domain.detach()
    with pytest.warns(RuntimeWarning, match="no layer ran"), domain.active():
        assert torch.equal(model(x), before)


class Keyword(nn.Module):
    def forward(self, *, scale: float, images: Tensor) -> Tensor:
        return images * scale


def test_images_given_by_keyword_are_found() -> None:
    model, x = Keyword(), normalise(torch.rand(4, 3, 8, 8))
    domain = Fourier().attach(model)
    torch.manual_seed(1)
    with domain.active():
        out = model(scale=2.0, images=x)
    torch.manual_seed(1)
    torch.testing.assert_close(out, 2 * switched_on(Fourier(), x))


def test_a_layer_inside_the_model_can_be_named() -> None:
    model = nn.Sequential(nn.Upsample(scale_factor=2), nn.Identity())
    domain = Fourier().attach(model, "1")
    x = normalise(torch.rand(4, 3, 8, 8))
    with domain.active():
        assert not torch.allclose(model(x), model[0](x))
    with pytest.raises(ValueError, match="already attached to layer '1'"):
        domain.attach(model, "1")


def test_wrong_inputs_are_refused_with_their_shape() -> None:
    with pytest.raises(ValueError, match=r"the model was called with a tensor of shape \(4, 1, 8, 8\).*\(B, 3, H, W\)"):
        switched_on(Fourier(), torch.rand(4, 1, 8, 8))
    with pytest.raises(ValueError, match=r"shape \(4, 3\)"):
        switched_on(Fourier(), torch.rand(4, 3))


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"eta=0 is not allowed; it must be a number in \(0, 1\]"):
        Fourier(eta=0)
    with pytest.raises(ValueError, match="mean and std must have one value per channel, got 1 and 3"):
        Fourier(mean=(0.5,))
    with pytest.raises(ValueError, match="std must be positive and finite"):
        Fourier(std=(1, 0, 1))
