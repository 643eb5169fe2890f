"""On a GPU: styles of channels-last maps by kernels of their own are those that float64 gives."""

import pytest
import torch

from mecam.virtual._style import has_kernels
from mecam.virtual.mixstyle import mix_style

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize(("channels", "side"), [(40, 9), (256, 14), (16, 33)])
def test_mixing_agrees_with_float64(dtype: torch.dtype, tolerance: float, channels: int, side: int) -> None:
    torch.manual_seed(0)
    there = (3 * torch.randn(6, channels, side, side, device="cuda") + 5).to(dtype)
    there = there.contiguous(memory_format=torch.channels_last).flatten(2).requires_grad_()
    here = there.detach().double().cpu().requires_grad_()
    lam, partner = torch.rand(6), torch.randperm(6)
    assert has_kernels(there)
    found, expected = mix_style(there, lam.cuda(), partner.cuda()), mix_style(here, lam.double(), partner)
    assert (found.dtype, found.stride()) == (dtype, there.stride())
    torch.testing.assert_close(found.double().cpu(), expected, rtol=tolerance, atol=10 * tolerance)
    weights = torch.randn_like(expected)
    found.backward(weights.to(found).reshape(found.shape))
    expected.backward(weights)
    assert there.grad is not None
    assert here.grad is not None
    torch.testing.assert_close(there.grad.double().cpu(), here.grad, rtol=tolerance, atol=10 * tolerance)


def test_other_layouts_are_left_to_torch() -> None:
    assert not has_kernels(torch.rand(2, 3, 4, device="cuda"))
    assert not has_kernels(torch.rand(2, 4, 3).transpose(1, 2))


def test_second_derivatives_agree_with_float64() -> None:
    """AdaHessian and IGA take them."""
    torch.manual_seed(0)
    there = torch.randn(6, 16, 4, 4, device="cuda").contiguous(memory_format=torch.channels_last).flatten(2)
    there.requires_grad_()
    here = there.detach().double().cpu().requires_grad_()
    lam, partner, along = torch.rand(6), torch.randperm(6), torch.randn(6, 16, 16)
    products = []
    for x, by in ((there, lam.cuda()), (here, lam.double())):
        (slope,) = torch.autograd.grad(mix_style(x, by, partner.to(x.device)).pow(3).sum(), x, create_graph=True)
        products.append(torch.autograd.grad(slope, x, along.to(x))[0].double().cpu())
    torch.testing.assert_close(*products, rtol=1e-4, atol=1e-3)
