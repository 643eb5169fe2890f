"""Passes side by side: the same step as passes in turn, bit for bit. Here without streams; `test_cuda` has them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.optim import OPTIMIZERS, SAM, MeCAM, SharpnessAware, _beside, sharpness
from mecam.optim._beside import SideBySide
from mecam.optim.vector import Space, Vector, unit
from mecam.virtual import MixStyle

METHODS = [entry.sharpness_aware for entry in OPTIMIZERS.values() if entry.sharpness_aware is not None]
BESIDE = dict.fromkeys(method for method in METHODS if method.side_by_side)
X = torch.randn(6, 3, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.arange(6) % 4


class Block(nn.Module):
    """A network with a layer for a virtual domain."""

    def __init__(self, norm: Callable[[], nn.Module] = nn.Identity) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Conv2d(3, 4, 3)
        self.norm = norm()
        self.head = nn.Linear(36, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.layer(x)).tanh().flatten(1))
        return out


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let every step pass for a captured one; return the numbers of the passes that ran beside others."""
    numbers: list[int] = []
    at = SideBySide.at

    def counted(self: SideBySide, offset: Vector | None, number: int) -> Any:
        numbers.append(number)
        return at(self, offset, number)

    monkeypatch.setattr(SideBySide, "at", counted)
    monkeypatch.setattr(sharpness, "fits", lambda _: True)
    monkeypatch.setattr(sharpness, "is_capturing", lambda: bool(_captured))
    _captured.clear()
    return numbers


_captured: list[bool] = []


def build(method: type[SharpnessAware], network: nn.Module, **options: Any) -> Any:
    if method is MeCAM:
        options["virtual_domain"] = MixStyle().attach(network, ["layer"])
    return method(network.parameters(), torch.optim.Adam, lr=0.01, **options)


def take(optimizer: Any, model: nn.Module, steps: int, failing: int | None = None) -> None:
    """The first step is eager; those after it count as captured."""
    calls: list[int] = []

    def closure() -> Tensor:
        calls.append(1)
        if len(calls) == failing:
            raise ValueError("stop")
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
        _captured.append(True)


@pytest.mark.parametrize("given", [True, False], ids=["model given", "model found"])
@pytest.mark.parametrize("method", BESIDE)
def test_the_step_is_that_of_passes_in_turn(method: type[SharpnessAware], given: bool, capturing: list[int]) -> None:
    states = []
    for side_by_side in (True, False):
        _captured.clear()
        model = Block().double()
        optimizer = build(method, model, model=model if given else None)
        optimizer.side_by_side = side_by_side
        addresses = [p.data_ptr() for p in model.parameters()]
        torch.manual_seed(2)  # of the virtual domain
        take(optimizer, model, 4)
        assert [p.data_ptr() for p in model.parameters()] == addresses
        states.append(model.state_dict())
    assert capturing == [1, 2] * 3
    torch.testing.assert_close(*states, rtol=0, atol=0)


@pytest.mark.parametrize("method", BESIDE)
def test_the_formula_needs_no_gradient_of_a_perturbed_pass(method: type[SharpnessAware]) -> None:
    """It gives the same sum if these gradients are filled in after it."""
    torch.manual_seed(3)
    parameter = nn.Parameter(torch.randn(5, dtype=torch.float64))
    values = torch.randn(3, 5, dtype=torch.float64)
    sums = []
    for late in (False, True):
        optimizer: Any = method([parameter], torch.optim.SGD, lr=0.1)
        space = optimizer._space = Space(optimizer.param_groups)
        memory = [torch.full_like(row, torch.nan) if late and i else row.clone() for i, row in enumerate(values)]
        vectors = iter([Vector(space, [(1.0, [[each]])]) for each in memory])
        combined = optimizer.gradient(lambda *_, vectors=vectors: next(vectors))
        for each, row in zip(memory, values, strict=True):
            each.copy_(row)
        sums.append(combined.tensors()[0][0])
    torch.testing.assert_close(*sums, rtol=0, atol=0)


class Mask(nn.Module):
    """Fills a buffer anew in every forward, with the same values."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.zeros(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        mask: Any = self.mask
        mask.zero_()[::2] = 1
        return x * mask


@pytest.mark.parametrize(
    ("norm", "beside"),
    [(lambda: nn.BatchNorm2d(4), False), (lambda: nn.SyncBatchNorm(4).eval(), True), (Mask, False)],
    ids=["live", "frozen", "filled"],
)
def test_passes_that_write_to_buffers_run_in_turn(
    norm: Callable[[], nn.Module], beside: bool, capturing: list[int]
) -> None:
    model = Block(norm).double()
    take(build(MeCAM, model, model=model), model, 3)
    assert capturing == ([1, 2] * 2 if beside else [])


def test_another_formula_makes_no_promise() -> None:
    class Dependent(MeCAM):
        def gradient(self, grad_at: Any) -> Vector:
            g = grad_at()
            return g + grad_at(unit(grad_at(unit(g))))

    class Renamed(MeCAM):
        pass

    assert not Dependent.side_by_side
    assert Renamed.side_by_side


def test_a_pass_that_raises_leaves_the_weights(capturing: list[int]) -> None:
    model = Block().double()
    optimizer = build(MeCAM, model, model=model)
    take(optimizer, model, 1)
    before = [(p.data_ptr(), p.clone()) for p in model.parameters()]
    with pytest.raises(ValueError, match="stop"):
        take(optimizer, model, 1, failing=2)
    assert capturing == [1]
    for parameter, (address, value) in zip(model.parameters(), before, strict=True):
        assert parameter.data_ptr() == address
        assert torch.equal(parameter, value)


def test_after_plain_steps_a_first_step_in_turn_decides(capturing: list[int]) -> None:
    model = Block().double()
    optimizer = build(MeCAM, model, model=model, start=2)
    take(optimizer, model, 2)
    _captured.clear()
    take(optimizer, model, 2)
    assert capturing == [1, 2]


def test_other_optimizers_and_eager_steps_run_in_turn(capturing: list[int]) -> None:
    model = Block().double()
    take(build(SAM, model, model=model), model, 2)
    optimizer = build(MeCAM, model, model=model)
    for _ in range(2):
        _captured.clear()
        take(optimizer, model, 1)
    assert capturing == []


def test_weights_in_shared_memory_and_passes_without_room_run_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads the memory by another tensor would not see the copies."""

    class OnGPU(Space):
        """The CPU's parameters, as if they were on a GPU with room for all passes."""

        def __init__(self, *parameters: Tensor) -> None:
            super().__init__([{"params": list(parameters)}])
            self.kinds = [replace(kind, device=torch.device("cuda", 0)) for kind in self.kinds]

    for name in ("memory_allocated", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda _: 0)
    monkeypatch.setattr(_beside, "_free", lambda _: 1 << 30)
    flat = torch.zeros(8)
    own, part, tied = nn.Parameter(torch.zeros(8)), nn.Parameter(flat[:4]), nn.Parameter(torch.zeros(8))
    assert _beside.fits(OnGPU(own))
    assert not _beside.fits(Space([{"params": [own]}]))
    assert not _beside.fits(OnGPU(own, part))
    tied.data = own.data
    assert not _beside.fits(OnGPU(own, tied))
    monkeypatch.setattr(_beside, "_free", lambda _: 7 * own.numel() * own.element_size())
    assert not _beside.fits(OnGPU(own))
