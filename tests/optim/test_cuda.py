"""What only a GPU can show: no waiting for the device, capture in a CUDA graph, skips decided there, fp16 for real."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.optim import CRSAM, ESAM, SAM, LookSAM, MeCAM, SharpnessAware, capture
from mecam.optim._beside import SideBySide
from mecam.virtual import MixStyle
from tests.optim.test_passes import METHODS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CAPTURABLE = [method for method in METHODS if method not in (ESAM, LookSAM)]  # these decide on the host


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    # no bias before batch norm: its gradient is rounding noise, which Adam would blow up to full steps
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 5),
    ).to("cuda", dtype)


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(1)
    images = torch.randn(16, 3, 12, 12, device="cuda", generator=generator)
    return images, torch.randint(0, 5, (16,), device="cuda", generator=generator)


def closure_for(optimizer: Any, model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).float(), y)
        loss.backward()
        return loss

    return closure


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1).double() for p in model.parameters()])


@pytest.mark.parametrize("base", [{"fused": True}, {"capturable": True}, {"foreach": True}])
@pytest.mark.parametrize("nonfinite", ["skip", "ignore"])
@pytest.mark.parametrize("method", METHODS)
def test_a_step_does_not_wait_for_the_device(
    method: type[SharpnessAware], nonfinite: str, base: dict[str, bool]
) -> None:
    if nonfinite == "skip" and "foreach" in base:
        pytest.skip("counts steps on the CPU: a skip must be known there")
    model, (x, y) = network(), batch()
    optimizer = method(model.parameters(), torch.optim.Adam, lr=0.01, nonfinite=nonfinite, model=model, **base)
    closure = closure_for(optimizer, model, x, y)
    for _ in range(2):
        optimizer.step(closure)
    if nonfinite == "skip" and method in (ESAM, LookSAM):
        return  # their counter is read on the host
    torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer.step(closure)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("base", [{"fused": True}, {"capturable": True}, {"foreach": True}])
@pytest.mark.parametrize("method", METHODS)
def test_a_skipped_step_changes_nothing(method: type[SharpnessAware], base: dict[str, bool]) -> None:
    a, b, (x, y) = network(), network(), batch()
    one = method(a.parameters(), torch.optim.Adam, lr=0.01, nonfinite="skip", **base)
    two = method(b.parameters(), torch.optim.Adam, lr=0.01, nonfinite="skip", **base)
    for steps in range(5):
        one.step(closure_for(one, a, x, y))
        two.step(closure_for(two, b, x, y))
        if steps in (1, 2):
            buffers = [buffer.clone() for buffer in a.buffers()]
            one.step(closure_for(one, a, x * torch.nan, y))
            for buffer, old in zip(a.buffers(), buffers, strict=True):
                buffer.copy_(old)  # a plain pass over a bad batch spoils batch norm too; that is not the step's part
    assert int(one.skipped) == 2
    assert int(two.skipped) == 0
    assert weights(a).isfinite().all()
    torch.testing.assert_close(weights(a), weights(b), rtol=0, atol=1e-6)


@pytest.mark.parametrize("before", [1, 3])
@pytest.mark.parametrize("method", CAPTURABLE)
def test_a_captured_step_equals_an_eager_one(method: type[SharpnessAware], before: int) -> None:
    """The whole step, passes and update, in one CUDA graph; rho is a tensor and changes between replays."""
    x, y = batch()

    def build() -> tuple[nn.Module, SharpnessAware]:
        model = network()
        rho = torch.tensor(0.05, device="cuda")
        kwargs: dict[str, Any] = {"lr": 0.01, "capturable": True, "nonfinite": "skip", "model": model, "rho": rho}
        return model, method(model.parameters(), torch.optim.Adam, **kwargs)

    eager_model, eager = build()
    model, optimizer = build()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(before):
            optimizer.step(closure_for(optimizer, model, x, y))
    torch.cuda.current_stream().wait_stream(stream)
    for _ in range(before):
        eager.step(closure_for(eager, eager_model, x, y))
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad()
    with torch.cuda.graph(graph):
        loss = optimizer.step(closure_for(optimizer, model, x, y))
    for step in range(4):
        for o in (optimizer, eager):
            o.param_groups[0]["rho"].fill_(0.05 / (step + 1))
        expected = eager.step(closure_for(eager, eager_model, x, y))
        graph.replay()
        torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weights(model), weights(eager_model), rtol=1e-4, atol=1e-5)
    for captured, plain in zip(model.buffers(), eager_model.buffers(), strict=True):
        torch.testing.assert_close(captured, plain, rtol=1e-4, atol=1e-5)
    counts = [int(o.param_groups[0]["taken"]) for o in (optimizer, eager)]
    assert counts == [before + 4] * 2
    assert int(optimizer.skipped) == 0


@pytest.mark.parametrize(("method", "settings"), [(SAM, {}), (MeCAM, {}), (LookSAM, {"k": 2}), (None, {})])
@pytest.mark.filterwarnings("error")
def test_capture_takes_the_steps_of_an_eager_loop(
    method: type[SharpnessAware] | None, settings: dict[str, Any]
) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = network()
        if method is None:
            return model, torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
        options = {"lr": 0.01, "fused": True, "nonfinite": "skip", "model": model, **settings}
        return model, method(model.parameters(), torch.optim.Adam, **options)

    (model, optimizer), (eager_model, eager) = build(), build()
    step = capture(optimizer, lambda x, y: F.cross_entropy(model(x), y))
    images, labels = batch()
    for x, y in zip(images.split(2)[:8], labels.split(2)[:8], strict=True):
        found, expected = step(x, y), eager.step(closure_for(eager, eager_model, x, y))
        torch.testing.assert_close(found, expected.detach(), rtol=1e-3, atol=1e-4)
    assert step.reason is None
    assert all(graph._graph is not None for graph in step._graphs.values())
    torch.testing.assert_close(weights(model), weights(eager_model), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", [None, SAM])
def test_capture_lets_a_running_adam_count_on_the_device(method: type[SharpnessAware] | None) -> None:
    (x, y), results = batch(), []
    x = x.double()
    for captured in (False, True):
        model = network(torch.float64)
        model[2] = nn.Tanh()  # smooth: Adam counts in float32 on the device, and a kink makes much of little
        optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        if method is not None:
            optimizer = method(model.parameters(), torch.optim.Adam, lr=0.01, nonfinite="skip", model=model)

        def closure(model: nn.Module = model, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        before = copy.deepcopy(optimizer.state_dict())
        step = capture(optimizer, lambda x, y, model=model: F.cross_entropy(model(x), y)) if captured else None
        for loaded in (False, True):
            if loaded:
                optimizer.load_state_dict(before)  # counts on the CPU again
            for _ in range(3):
                step(x, y) if step else optimizer.step(closure)
        assert step is None or step.reason is None
        results.append(weights(model))
    torch.testing.assert_close(*results, rtol=0, atol=2e-5)  # a step too many moves weights by 1e-3 and more


@pytest.mark.parametrize("method", [MeCAM, CRSAM])
def test_passes_side_by_side_equal_passes_in_turn(
    method: type[SharpnessAware], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, over steps long enough to overlap."""
    forks: list[bool] = []
    fork = SideBySide._fork
    monkeypatch.setattr(SideBySide, "_fork", lambda self: forks.append(True) or fork(self))  # type: ignore[func-returns-value]
    x, y = torch.randn(512, 1024, device="cuda"), torch.randint(0, 9, (512,), device="cuda")
    ends = []
    for side_by_side in (True, False):
        torch.manual_seed(0)
        layers = [layer for _ in range(6) for layer in (nn.Linear(1024, 1024), nn.GELU())]
        model = nn.Sequential(*layers, nn.Linear(1024, 9)).cuda()
        optimizer: Any = method(model.parameters(), torch.optim.Adam, lr=1e-3, fused=True, nonfinite="skip", rho=1.0)
        optimizer.side_by_side = side_by_side
        step = capture(optimizer, lambda x, y, model=model: F.cross_entropy(model(x), y))  # type: ignore[misc]
        addresses = [p.data_ptr() for p in model.parameters()]
        losses = torch.stack([step(x, y) for _ in range(12)])
        assert step.reason is None
        assert [p.data_ptr() for p in model.parameters()] == addresses
        ends.append((losses, weights(model)))
    assert len(forks) == 1
    torch.testing.assert_close(*ends, rtol=0, atol=0)


def test_passes_without_room_for_two_are_captured_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate of the memory is taken away: the capture runs out of it, and is taken again."""
    monkeypatch.setattr("mecam.optim.sharpness.fits", lambda _: True)
    total, used = torch.cuda.mem_get_info()[1], torch.cuda.memory_allocated()
    x, y = torch.randn(1 << 16, 1024, device="cuda"), torch.randint(0, 9, (1 << 16,), device="cuda")
    layers = [layer for _ in range(6) for layer in (nn.Linear(1024, 1024), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(1024, 9)).cuda()
    optimizer = MeCAM(model.parameters(), torch.optim.Adam, lr=1e-3, fused=True, nonfinite="skip")
    step = capture(optimizer, lambda x, y: F.cross_entropy(model(x), y))
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step(x, y)
    torch.cuda.set_per_process_memory_fraction((used + 1.3 * (torch.cuda.max_memory_allocated() - used)) / total)
    try:
        losses = [step(x, y).item() for _ in range(3)]
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert step.reason is None
    assert not optimizer.side_by_side
    assert torch.tensor(losses).isfinite().all()


def test_mixstyle_in_a_captured_step_mixes_anew_in_every_replay() -> None:
    model, (x, y) = network(), batch()
    style = MixStyle().attach(model, ["0"])
    optimizer = MeCAM(
        model.parameters(), torch.optim.SGD, lr=0.0, nonfinite="ignore", model=model, virtual_domain=style, track=True
    )
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            optimizer.step(closure_for(optimizer, model, x, y))
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad()
    with torch.cuda.graph(graph):
        optimizer.step(closure_for(optimizer, model, x, y))
    assert optimizer.last is not None
    virtual = []
    for _ in range(3):
        graph.replay()
        virtual.append(optimizer.last.losses[2].item())
    assert len(set(virtual)) == 3


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_weights_come_back_bit_for_bit(method: type[SharpnessAware], dtype: torch.dtype) -> None:
    model, (x, y) = network(dtype), batch()
    options = {"decouple": False} if method.__name__ == "WSAM" else {}
    optimizer = method(model.parameters(), torch.optim.SGD, lr=0.0, **options)
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(3):
        optimizer.step(closure_for(optimizer, model, x.to(dtype), y))
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter.detach().view(torch.uint8), old.view(torch.uint8))


@pytest.mark.parametrize("method", METHODS)
def test_fp16_with_a_grad_scaler(method: type[SharpnessAware]) -> None:
    model, (x, y) = network(), batch()
    optimizer = method(model.parameters(), torch.optim.Adam, lr=0.01)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**30)  # overflows at first: some steps are skipped

    def closure() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        return loss

    losses = []
    for _ in range(40):
        losses.append(optimizer.step(closure, scaler=scaler).item())
        scaler.update()
    assert int(optimizer.skipped) > 0
    assert losses[-1] < losses[0]
    assert weights(model).isfinite().all()


def test_several_devices_dtypes_and_memory_formats() -> None:
    model, (x, y) = network().to(memory_format=torch.channels_last), batch()
    other = network()
    one = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
    two = SAM(other.parameters(), torch.optim.SGD, lr=0.1)
    for _ in range(3):
        one.step(closure_for(one, model, x.to(memory_format=torch.channels_last), y))
        two.step(closure_for(two, other, x, y))
    torch.testing.assert_close(weights(model), weights(other), rtol=1e-4, atol=1e-5)


def test_shared_noise_replays_the_devices_dropout() -> None:
    model = nn.Sequential(nn.Linear(20, 20), nn.Dropout(0.5)).cuda()
    optimizer = MeCAM(model.parameters(), torch.optim.SGD, lr=0.0, rho=0.0, shared_noise=True, track=True)
    x = torch.randn(8, 20, device="cuda")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    seen = set()
    for _ in range(3):
        optimizer.step(closure)
        assert optimizer.last is not None
        assert len({loss.item() for loss in optimizer.last.losses}) == 1
        seen.add(optimizer.last.losses[0].item())
    assert len(seen) == 3
