"""What holds for all virtual domains on feature maps."""

import pytest
import torch

from mecam.virtual import DSU, EFDMix, MixStyle, VirtualDomain
from tests.virtual.domains import switched_on

EVERY = pytest.mark.parametrize("kind", [DSU, EFDMix, MixStyle])


ONE_SAMPLE, ONE_POSITION = (1, 3, 4, 4), (4, 3, 1, 1)


@pytest.mark.parametrize(
    ("kind", "shape"),  # EFDMix mixes the values of one position
    [(DSU, ONE_SAMPLE), (DSU, ONE_POSITION), (EFDMix, ONE_SAMPLE), (MixStyle, ONE_SAMPLE), (MixStyle, ONE_POSITION)],
)
def test_what_has_no_style_to_change_stays_as_it_is(kind: type[VirtualDomain], shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    assert torch.equal(switched_on(kind(), x), x)


@EVERY
def test_constant_channels_stay_finite_forward_and_backward(kind: type[VirtualDomain]) -> None:
    x = torch.ones(4, 3, 4, 4, requires_grad=True)
    out = switched_on(kind(), x)
    torch.autograd.backward(out.sum())
    assert out.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@EVERY
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_the_single_precision_result_rounded(kind: type[VirtualDomain], dtype: torch.dtype) -> None:
    x = (torch.randn(4, 3, 8, 8) + 30).to(dtype)
    torch.manual_seed(1)
    half = switched_on(kind(), x)
    torch.manual_seed(1)
    assert half.dtype == dtype
    assert torch.equal(half, switched_on(kind(), x.float()).to(dtype))
