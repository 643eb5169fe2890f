"""Kinds of model: SAM takes the steps of a loop written by hand, and leaves the same buffers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from mecam.optim import SAM

RHO, STEPS = 0.1, 3
Run = Callable[[nn.Module], Tensor]  # a model's output


def vectors(model: nn.Module) -> Tensor:
    return model(torch.linspace(-1, 1, 48, dtype=torch.float64).reshape(6, 8).sin())  # type: ignore[no-any-return]


def images(model: nn.Module, *, sizes: tuple[int, ...] = (7, 7)) -> Tensor:
    x = torch.arange(4 * 3 * torch.Size(sizes).numel(), dtype=torch.float64).reshape(4, 3, *sizes)
    return model((x * 0.37).sin())  # type: ignore[no-any-return]


def tokens(model: nn.Module) -> Tensor:
    return model(torch.arange(20).reshape(4, 5) % 7)  # type: ignore[no-any-return]


def sequences(model: nn.Module) -> Tensor:
    output = model(torch.arange(120, dtype=torch.float64).reshape(5, 3, 8).cos())
    return output[0] if isinstance(output, tuple) else output


class Custom(nn.Module):
    """A forward given as a function of the module's parts."""

    def __init__(self, forward: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)
        self.compute = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(self, x)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * ctx.saved_tensors[0] * gradient


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))


def frozen_backbone() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))
    model[0].requires_grad_(False)
    return model


def hooked() -> nn.Module:
    model = mlp()
    model[0].weight.register_hook(lambda gradient: gradient * 0.5)  # type: ignore[union-attr,operator]
    return model


def tied() -> nn.Module:
    model = Custom(lambda m, x: m.head(m.embedding(x)), embedding=nn.Embedding(7, 8), head=nn.Linear(8, 7, bias=False))
    model.head.weight = model.embedding.weight  # type: ignore[union-attr]
    return model


def lora(m: Any, x: Tensor) -> Tensor:
    return m.frozen(x) + x @ m.down @ m.up  # type: ignore[no-any-return]


def running_mean(m: Any, x: Tensor) -> Tensor:
    if m.training:
        m.mean.lerp_(x.mean(0), 0.1)
    return m.inner(x - m.mean)  # type: ignore[no-any-return]


def momentum_encoder(m: Any, x: Tensor) -> Tensor:
    """Return the distance to a teacher that the forward moves, as BYOL does."""
    with torch.no_grad():
        m.teacher.weight.lerp_(m.student.weight, 0.1)
        target = m.teacher(x)
    return m.student(x) - target  # type: ignore[no-any-return]


def routed(m: Any, x: Tensor) -> Tensor:
    choice = m.router(x).argmax(1)
    return torch.cat([m.experts[int(i)](row[None]) for i, row in zip(choice, x, strict=True)])


def scripted() -> nn.Module:
    return torch.jit.script(mlp().double())


def traced() -> nn.Module:
    return torch.jit.trace(mlp().double(), torch.zeros(6, 8, dtype=torch.float64))


def called(model: nn.Module) -> Tensor:
    return vectors(lambda x: torch.func.functional_call(model, dict(model.named_parameters()), (x,)))  # type: ignore[arg-type]


def ensemble(m: Any, x: Tensor) -> Tensor:
    return torch.vmap(lambda weight: torch.tanh(x @ weight))(m.weights)


def numbers(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.linspace(-0.5, 0.5, torch.Size(shape).numel()).reshape(shape))


def frozen_linear() -> nn.Module:
    return nn.Linear(8, 4).requires_grad_(False)


def experts() -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(8, 4) for _ in range(3))


def listed(m: Any, x: Tensor) -> Tensor:
    return sum((x * p for p in m.ps), x)


def checkpointed(m: Any, x: Tensor) -> Tensor:
    return checkpoint(m.inner, x, use_reentrant=False)


def twice(m: Any, x: Tensor) -> Tensor:
    return m.inner(m.inner(x).tanh())  # type: ignore[no-any-return]


def scaled(m: Any, x: Tensor) -> Tensor:
    return m.inner(x) * m.scale  # type: ignore[no-any-return]


KINDS: dict[str, tuple[Callable[[], nn.Module], Run]] = {
    "linear": (lambda: nn.Linear(8, 4), vectors),
    "perceptron": (mlp, vectors),
    "bilinear": (lambda: Custom(lambda m, x: m.inner(x, x.tanh()), inner=nn.Bilinear(8, 8, 3)), vectors),
    "PReLU": (lambda: nn.Sequential(nn.Linear(8, 6), nn.PReLU(6), nn.Linear(6, 4)), vectors),
    "convolution 1d": (lambda: nn.Conv1d(3, 4, 3), partial(images, sizes=(7,))),
    "convolution 2d": (lambda: nn.Conv2d(3, 4, 3), images),
    "convolution 3d": (lambda: nn.Conv3d(3, 4, 2), partial(images, sizes=(4, 4, 4))),
    "depthwise convolution": (lambda: nn.Conv2d(3, 6, 3, groups=3), images),
    "transposed convolution": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2), images),
    "channels last": (lambda: nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), images),
    "batch norm": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3)), images),
    "batch norm in eval mode": (lambda: nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6).eval()), vectors),
    "instance norm with statistics": (lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True), images),
    "group norm": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Tanh()), images),
    "layer norm": (lambda: nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.Linear(6, 4)), vectors),
    "RMS norm": (lambda: nn.Sequential(nn.Linear(8, 6), nn.RMSNorm(6), nn.Linear(6, 4)), vectors),
    "RNN": (lambda: nn.RNN(8, 6), sequences),
    "LSTM": (lambda: nn.LSTM(8, 6, num_layers=2), sequences),
    "GRU, bidirectional": (lambda: nn.GRU(8, 6, bidirectional=True), sequences),
    "embedding": (lambda: nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 4)), tokens),
    "embedding bag": (lambda: nn.EmbeddingBag(7, 8), tokens),
    "attention": (lambda: Custom(lambda m, x: m.inner(x, x, x)[0], inner=nn.MultiheadAttention(8, 2)), sequences),
    "transformer encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1), sequences),
    "transformer": (lambda: Custom(lambda m, x: m.inner(x, x), inner=nn.Transformer(8, 2, 1, 1, 16)), sequences),
    "dropout": (lambda: nn.Sequential(nn.Linear(8, 20), nn.Dropout(0.5), nn.Linear(20, 4)), vectors),
    "residual": (lambda: Custom(lambda m, x: x + m.inner(x).sin(), inner=nn.Linear(8, 8)), vectors),
    "one module, called twice": (lambda: Custom(twice, inner=nn.Linear(8, 8)), vectors),
    "tied weights": (tied, tokens),
    "frozen backbone": (frozen_backbone, vectors),
    "unused parameter": (lambda: Custom(lambda m, x: m.inner(x), inner=mlp(), spare=nn.Linear(2, 2)), vectors),
    "scalar parameter": (lambda: Custom(scaled, inner=mlp(), scale=numbers()), vectors),
    "parameter list": (lambda: Custom(listed, ps=nn.ParameterList([numbers(8), numbers(8)])), vectors),
    "parameter dict": (lambda: Custom(lambda m, x: x * m.ps["a"], ps=nn.ParameterDict({"a": numbers(8)})), vectors),
    "low-rank adapter": (lambda: Custom(lora, frozen=frozen_linear(), down=numbers(8, 2), up=numbers(2, 4)), vectors),
    "mixture of experts": (lambda: Custom(routed, router=nn.Linear(8, 3), experts=experts()), vectors),
    "vmap over members": (lambda: Custom(ensemble, weights=numbers(3, 8, 2)), vectors),
    "weight norm": (lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 6)), nn.Tanh()), vectors),
    "spectral norm": (lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(8, 6)), nn.Tanh()), vectors),
    "orthogonal": (lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(8, 6)), nn.Tanh()), vectors),
    "running mean of its own": (lambda: Custom(running_mean, inner=mlp(), mean=torch.zeros(8)), vectors),
    "momentum encoder": (lambda: Custom(momentum_encoder, student=nn.Linear(8, 4), teacher=frozen_linear()), vectors),
    "gradient hooks": (hooked, vectors),
    "a Function of its own": (lambda: nn.Sequential(nn.Linear(8, 4), Custom(lambda _, x: Square.apply(x))), vectors),
    "complex numbers inside": (lambda: Custom(lambda m, x: torch.fft.fft(m.inner(x)).abs(), inner=mlp()), vectors),
    "activation checkpointing": (lambda: Custom(checkpointed, inner=mlp()), vectors),
    "functional_call": (mlp, called),
    "scripted": (scripted, vectors),
    "traced": (traced, vectors),
    "compiled": (lambda: torch.compile(mlp(), backend="eager"), vectors),  # type: ignore[dict-item,return-value]
}  # fmt: skip


def loss_of(run: Run, model: nn.Module) -> Tensor:
    return F.softplus(run(model)).square().mean()


def by_hand(model: nn.Module, run: Run) -> None:
    """Train by SAM, written out."""
    trained = [p for p in model.parameters() if p.requires_grad]
    base = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
    for step in range(STEPS):
        torch.manual_seed(step)
        base.zero_grad()
        loss_of(run, model).backward()
        after_first = copy.deepcopy(model.state_dict())
        held = [p for p in trained if p.grad is not None]
        theta = [p.detach().clone() for p in held]
        gradients = [p.grad.clone() for p in held if p.grad is not None]
        norm = torch.stack([g.norm() for g in gradients]).norm()
        with torch.no_grad():
            for p, g in zip(held, gradients, strict=True):
                p += RHO / (norm + 1e-12) * g
        base.zero_grad()
        loss_of(run, model).backward()
        model.load_state_dict(after_first)
        with torch.no_grad():
            for p, old in zip(held, theta, strict=True):
                p.copy_(old)
        base.step()


def by_sam(model: nn.Module, run: Run) -> None:
    optimizer = SAM(model.parameters(), torch.optim.SGD, RHO, lr=0.1, momentum=0.9, model=model)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(run, model)
        loss.backward()
        return loss

    for step in range(STEPS):
        torch.manual_seed(step)
        optimizer.step(closure)


@pytest.mark.works_with(
    "kinds of model",
    "weights and buffers after SAM's steps equal those of a loop by hand: " + ", ".join(KINDS),
    packages=["torch"],
)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_model(kind: str) -> None:
    make, run = KINDS[kind]
    states = []
    for train in (by_hand, by_sam):
        torch.manual_seed(7)
        model = make().double()
        before = [p.detach().clone() for p in model.parameters()]
        train(model, run)
        assert any(not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
        states.append(model.state_dict())
    expected, ours = states
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)
