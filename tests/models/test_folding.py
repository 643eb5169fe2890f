"""A folded convolution is the same function as convolution, batch norm, sum and activation, and has its gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mecam.models._convolution import Geometry
from mecam.models.folding import NONE, RELU, RELU6, Pooling, Squares, _pooling, conv_bn, conv_bn_pool, is_stem
from mecam.models.frozen_bn import fold_frozen
from mecam.models.lite import EfficientNetLite, SameConv2d
from mecam.models.network import Network
from mecam.models.registry import create
from mecam.models.resnet import Bottleneck, BottleneckV1, ResNet


def layer(conv: nn.Conv2d) -> nn.ModuleList:
    """A convolution and a batch norm with statistics of its own, frozen, in float64."""
    bn = nn.BatchNorm2d(conv.out_channels)
    for values in (bn.weight, bn.bias, bn.running_mean):
        nn.init.normal_(values)  # type: ignore[arg-type]
    nn.init.uniform_(bn.running_var, 0.5, 2.0)  # type: ignore[arg-type]
    return nn.ModuleList([conv, bn]).double().eval()


def gradients(module: nn.Module, out: Tensor, *inputs: Tensor) -> list[Tensor]:
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    return list(torch.autograd.grad((out * weights).sum(), [*inputs, *module.parameters()]))


@pytest.mark.parametrize("act", [NONE, RELU, RELU6])
@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(4, 6, 1, bias=False),
        nn.Conv2d(4, 6, 1, stride=2, bias=False),
        nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False),
        nn.Conv2d(4, 4, 5, padding=2, groups=4, bias=False),
        nn.Conv2d(4, 8, (2, 7), stride=(1, 3), padding=(1, 2), groups=4, bias=False),
        SameConv2d(4, 6, 3, stride=2, bias=False),
        SameConv2d(4, 4, 5, stride=2, groups=4, bias=False),
    ],
    ids=["1x1", "1x1 stride 2", "3x3 stride 2", "depthwise", "depthwise 2x7 by 3", "same", "same depthwise"],
)
def test_value_and_gradients_equal_the_unfolded_ones(conv: nn.Conv2d, summed: bool, act: float) -> None:
    torch.manual_seed(0)
    plain = layer(conv)
    folded = copy.deepcopy(plain)
    fold_frozen(folded)
    x = (3 * torch.randn(2, 4, 9, 9, dtype=torch.float64)).requires_grad_()
    residual = torch.randn_like(plain[1](plain[0](x))).requires_grad_() if summed else None
    inputs = [x] if residual is None else [x, residual]
    expected = conv_bn(x, plain[0], plain[1], act, residual)  # type: ignore[arg-type]
    found = conv_bn(x, folded[0], folded[1], act, residual)  # type: ignore[arg-type]
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(folded, found, *inputs), gradients(plain, expected, *inputs))


def test_a_strided_depthwise_convolution_in_bf16_has_the_gradients_of_float64() -> None:
    torch.manual_seed(0)
    exact = layer(nn.Conv2d(8, 8, 5, stride=2, padding=2, groups=8, bias=False))
    folded = copy.deepcopy(exact).float()
    fold_frozen(folded)
    x = torch.randn(2, 8, 13, 13)
    inputs = [x.requires_grad_(), x.detach().double().requires_grad_()]
    with torch.autocast("cpu", torch.bfloat16):
        found = conv_bn(inputs[0], folded[0], folded[1], NONE)  # type: ignore[arg-type]
    expected = conv_bn(inputs[1], exact[0], exact[1], NONE)  # type: ignore[arg-type]
    assert found.dtype == torch.bfloat16
    weights = torch.randn(found.shape, dtype=torch.float64)
    torch.autograd.backward([(found.double() * weights).sum(), (expected * weights).sum()])
    pairs = zip([inputs[0], *folded.parameters()], [inputs[1], *exact.parameters()], strict=True)
    assert all((value.grad.double() - truth.grad).norm() < 0.03 * truth.grad.norm() for value, truth in pairs)  # type: ignore[union-attr, operator]


@pytest.mark.parametrize("pool", [nn.MaxPool2d(3, stride=2, padding=1), nn.Identity()], ids=["pooled", "as it is"])
@pytest.mark.parametrize("live", [False, True], ids=["frozen", "live"])
def test_pooling_follows_wherever_it_is_done(pool: nn.Module, live: bool) -> None:
    torch.manual_seed(0)
    plain = layer(nn.Conv2d(4, 6, 3, bias=False)).train(live)
    folded = copy.deepcopy(plain)
    fold_frozen(folded)
    x = (3 * torch.randn(2, 4, 9, 12, dtype=torch.float64)).requires_grad_()
    expected = pool(plain[1](plain[0](x)).relu())
    found = conv_bn_pool(x, folded[0], folded[1], pool)  # type: ignore[arg-type]
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(folded, found, x), gradients(plain, expected, x))


class OtherPooling(nn.MaxPool2d):
    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(-x)


def test_which_poolings_are_ours() -> None:
    assert _pooling(nn.MaxPool2d(3, stride=2, padding=1)) == Pooling(3, 2, 1, True)
    with torch.no_grad():
        assert _pooling(nn.MaxPool2d(2)) == Pooling(2, 2, 0, False)
    settings: list[dict[str, Any]] = [
        {"kernel_size": (3, 2)},
        {"kernel_size": 7},
        {"kernel_size": 3, "stride": (2, 1)},
        {"kernel_size": 3, "padding": (1, 0)},
        {"kernel_size": 3, "padding": 2},  # which torch refuses
        {"kernel_size": 3, "dilation": 2},
        {"kernel_size": 3, "ceil_mode": True},
        {"kernel_size": 3, "return_indices": True},
    ]
    assert [_pooling(nn.MaxPool2d(**each)) for each in settings] == [None] * len(settings)
    assert _pooling(nn.AvgPool2d(3)) is None
    assert _pooling(OtherPooling(3)) is None


def plain_and_folded(network: nn.Module) -> tuple[nn.Module, nn.Module, Tensor]:
    """Return a network, its folded copy, and images, in float64."""
    torch.manual_seed(0)
    plain = network.double().eval()
    folded = copy.deepcopy(plain)
    fold_frozen(folded)
    return plain, folded, torch.randn(2, 3, 32, 32, dtype=torch.float64)


@pytest.mark.parametrize(
    "network",
    [
        ResNet(Bottleneck, (1, 2), 4, classes=3),
        ResNet(BottleneckV1, (1, 2), 4, classes=3),
        EfficientNetLite(0.25, 0.3, classes=3),
    ],
    ids=["resnet", "resnet v1", "lite"],
)
def test_a_whole_network_has_the_same_gradient(network: nn.Module) -> None:
    plain, folded, x = plain_and_folded(network)
    found, expected = folded(x), plain(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(folded, found), gradients(plain, expected))


def test_a_live_batch_norm_is_not_folded() -> None:
    torch.manual_seed(0)
    plain = create("resnet8", classes=3).train()
    folded = copy.deepcopy(plain)
    fold_frozen(folded)
    x = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(folded(x), plain(x), rtol=0, atol=0)
    torch.testing.assert_close(list(folded.buffers()), list(plain.buffers()), rtol=0, atol=0)


def second(module: nn.Module, x: Tensor) -> list[Tensor]:
    """Return a product with the Hessian of the sum of squares of the outputs."""
    parameters = list(module.parameters())
    first = torch.autograd.grad(module(x).square().sum(), parameters, create_graph=True)
    generator = torch.Generator().manual_seed(2)
    along = [torch.randn(each.shape, generator=generator, dtype=each.dtype).to(each.device) for each in parameters]
    return list(torch.autograd.grad(first, parameters, along))


@pytest.mark.parametrize(
    "network",
    [ResNet(Bottleneck, (1, 2), 4, classes=3), EfficientNetLite(0.25, 0.3, classes=3)],
    ids=["resnet", "lite"],
)
def test_second_derivatives_equal_the_unfolded_ones(network: nn.Module) -> None:
    plain, folded, x = plain_and_folded(network)
    torch.testing.assert_close(second(folded, x), second(plain, x))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_triton_refuses_a_second_derivative() -> None:
    network: Network = create("resnet8", classes=3, freeze_bn=True).cuda()
    fold_frozen(network)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        second(network, torch.randn(2, 3, 32, 32, device="cuda"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("act", [NONE, RELU, RELU6])
@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(40, 144, 3, padding=1, bias=False),
        nn.Conv2d(40, 144, 1, stride=2, bias=False),
        nn.Conv2d(40, 40, 3, stride=2, padding=1, groups=40, bias=False),
        SameConv2d(40, 40, 3, stride=2, groups=40, bias=False),
        SameConv2d(40, 40, 5, stride=2, groups=40, bias=False),
        SameConv2d(40, 40, 5, stride=3, groups=40, bias=False),
    ],
    ids=["dense", "1x1 by 2", "depthwise 3 by 2", "same 3 by 2", "same 5 by 2", "same 5 by 3"],
)
@pytest.mark.parametrize("size", [(17, 17), (14, 20)], ids=["odd", "even"])
def test_the_kernels_agree_with_float64(
    conv: nn.Conv2d, size: tuple[int, int], summed: bool, act: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    reference = layer(copy.deepcopy(conv))
    x = torch.randn(5, 40, *size, dtype=torch.float64)
    residual = torch.randn_like(reference[0](x)) if summed else None
    expected = conv_bn(x.requires_grad_(), reference[0], reference[1], act, residual)  # type: ignore[arg-type]
    on_gpu = copy.deepcopy(reference).float().cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    fold_frozen(on_gpu)
    near = x.detach().float().cuda().requires_grad_()
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    found = conv_bn(near, on_gpu[0], on_gpu[1], act, None if residual is None else residual.float().cuda())
    torch.testing.assert_close(found.double().cpu(), expected, rtol=1e-4, atol=1e-4)
    weights = torch.randn(out_shape := found.shape)
    assert out_shape == expected.shape
    torch.autograd.backward([(found * weights.cuda()).sum(), (expected * weights.double()).sum()])
    pairs = zip([near, *on_gpu.parameters()], [x, *reference.parameters()], strict=True)
    for value, truth in pairs:
        error = (value.grad.double().cpu() - truth.grad).norm() / truth.grad.norm()  # type: ignore[union-attr]
        # rounding may put a value near 0 on the other side of the activation's kink
        assert error < (1e-4 if act == NONE else 1e-2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("pooling", [Pooling(3, 2, 1, True), Pooling(2, 2, 0, True), Pooling(5, 3, 2, True)])
@pytest.mark.parametrize("size", [(17, 17), (14, 20)], ids=["odd", "even"])
def test_pooling_chooses_as_torch_does(size: tuple[int, int], pooling: Pooling, dtype: torch.dtype) -> None:
    """Small integers: many are equal, and sums of gradients are exact."""
    torch.manual_seed(0)
    maps = torch.randint(-2, 3, (3, 70, *size))
    z = torch.cat([maps, maps - 9, torch.where(maps > 1, 0.0, -torch.inf)]).to(dtype).requires_grad_()
    expected = nn.functional.max_pool2d(z, *pooling[:3])
    weights = torch.randint(-8, 9, expected.shape).to(dtype)
    (d_expected,) = torch.autograd.grad(expected, z, weights)
    near, d_near = (value.detach().cuda().contiguous(memory_format=torch.channels_last) for value in (z, weights))
    found, which = pooling.of(near)
    assert which is not None
    assert torch.equal(found.cpu(), expected)
    assert torch.equal(pooling.back(d_near, which, near.shape).cpu(), d_expected)
    alone, nothing = pooling._replace(keeps=False).of(near)
    assert torch.equal(alone, found)
    assert nothing is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_pooling_passes_nan_on() -> None:
    torch.manual_seed(0)
    z = torch.randn(2, 64, 9, 9)
    z[torch.rand(z.shape) < 0.1] = torch.nan
    pooling = Pooling(3, 2, 1, True)
    found, which = pooling.of(z.cuda().contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(found.cpu(), nn.functional.max_pool2d(z, 3, 2, 1), rtol=0, atol=0, equal_nan=True)
    assert which is not None
    assert pooling.back(torch.ones_like(found), which, z.shape).sum() == found.numel()  # each to one place on the map


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("act", [NONE, RELU, RELU6])
@pytest.mark.parametrize("size", [(33, 33), (28, 40)], ids=["odd", "even"])
def test_a_pooled_convolution_agrees_with_float64(
    size: tuple[int, int], act: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    reference, pool = layer(nn.Conv2d(3, 70, 7, stride=2, padding=3, bias=False)), nn.MaxPool2d(3, stride=2, padding=1)
    x = torch.randn(5, 3, *size, dtype=torch.float64)
    expected = conv_bn_pool(x, reference[0], reference[1], pool, act)  # type: ignore[arg-type]
    on_gpu = copy.deepcopy(reference).float().cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    fold_frozen(on_gpu)
    near = x.float().cuda()
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(pool, "forward", None)  # the kernels do it
    found = conv_bn_pool(near, on_gpu[0], on_gpu[1], pool, act)
    torch.testing.assert_close(found.double().cpu(), expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        assert torch.equal(conv_bn_pool(near, on_gpu[0], on_gpu[1], pool, act), found)
    weights = torch.randn(found.shape)
    torch.autograd.backward([(found * weights.cuda()).sum(), (expected * weights.double()).sum()])
    for value, truth in zip(on_gpu.parameters(), reference.parameters(), strict=True):
        error = (value.grad.double().cpu() - truth.grad).norm() / truth.grad.norm()  # type: ignore[union-attr]
        assert error < 1e-2  # rounding may put one of two values that are nearly equal before the other


@pytest.mark.parametrize("side", [8, 9, 11])
@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(3, 6, 7, stride=2, padding=3, bias=False),
        nn.Conv2d(3, 6, 3, stride=2, bias=False),
        nn.Conv2d(1, 6, (4, 5), stride=3, padding=(0, 2), bias=False),
    ],
    ids=["7x7", "3x3", "4x5 by 3"],
)
def test_a_stem_is_a_convolution_of_squares(conv: nn.Conv2d, side: int) -> None:
    torch.manual_seed(0)
    assert is_stem(conv) == (conv.kernel_size == (7, 7))
    conv = conv.double()
    geometry = Geometry(conv.stride, conv.padding, conv.dilation, 1)  # type: ignore[arg-type]
    x = torch.randn(2, conv.in_channels, side, side + 2, dtype=torch.float64).to(memory_format=torch.channels_last)
    expected = geometry.of(x, conv.weight)
    torch.testing.assert_close(Squares(geometry).of(x, conv.weight), expected)
    dz = torch.randn_like(expected)
    found = Squares(geometry).back(dz, x, conv.weight, to_input=True)
    torch.testing.assert_close(found, geometry.back(dz, x, conv.weight, to_input=True))
    assert Squares(geometry).back(dz, x, conv.weight, to_input=False)[0] is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("kernel", [1, 3])
def test_evaluations_by_cudnn_are_as_exact_as_bf16_allows(kernel: int, summed: bool) -> None:
    torch.manual_seed(0)
    exact = layer(nn.Conv2d(64, 128, kernel, padding=kernel // 2, bias=False))
    x = torch.randn(8, 64, 14, 14, dtype=torch.float64)
    residual = torch.randn(8, 128, 14, 14, dtype=torch.float64) if summed else None
    expected = conv_bn(x, exact[0], exact[1], RELU, residual)  # type: ignore[arg-type]
    folded = copy.deepcopy(exact).float().cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    fold_frozen(folded)
    inputs = x.float().cuda(), None if residual is None else residual.float().cuda()
    with torch.autocast("cuda", torch.bfloat16):
        ours = conv_bn(inputs[0], folded[0], folded[1], RELU, inputs[1])
        with torch.no_grad():
            cudnn = conv_bn(inputs[0], folded[0], folded[1], RELU, inputs[1])
    assert not torch.equal(cudnn, ours)
    errors = [float((out.detach().double().cpu() - expected).norm() / expected.norm()) for out in (cudnn, ours)]
    assert errors[0] < 1.6 * errors[1] < 0.01
