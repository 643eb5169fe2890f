"""Mixed precision: bf16 autocast, and fp16 with a GradScaler, which must see an overflow in any pass."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.optim import ESAM, FSAM, OPTIMIZERS, SAM, WSAM, LookSAM, MeCAM, SharpnessAware
from tests.optim.flat import batch, network

METHODS = [entry.sharpness_aware for entry in OPTIMIZERS.values() if entry.sharpness_aware is not None]
X, Y = batch(size=32)
PASSES = [(method, number) for method in METHODS for number in range(method.passes)]


def scaler_for(scale: float = 2.0**10) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale)


def build(method: type[SharpnessAware], model: nn.Module, base: Any = torch.optim.Adam, **options: Any) -> Any:
    extra = {LookSAM: {"k": 2}}.get(method, {})  # these look in steps 0, 2, ...
    return method(model.parameters(), base, lr=0.05, **extra, **options)


def closure_for(
    optimizer: SharpnessAware,
    model: nn.Module,
    scaler: torch.amp.GradScaler | None = None,
    spoil: Callable[[int], float] = lambda _: 1.0,
    autocast: torch.dtype | None = None,
) -> Callable[[], Tensor]:
    """A closure whose loss in pass number i is multiplied by spoil(i)."""
    passes = 0
    dtype = next(model.parameters()).dtype

    def closure() -> Tensor:
        nonlocal passes
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
            loss = F.cross_entropy(model(X.to(dtype)), Y) * spoil(passes)
        (loss if scaler is None else scaler.scale(loss)).backward()
        passes += 1
        return loss

    return closure


def everything(model: nn.Module, optimizer: SharpnessAware) -> dict[str, Any]:
    """Weights, the base's state and the method's, without the count of skipped steps."""
    packed = copy.deepcopy(optimizer.state_dict())
    for group in packed["param_groups"]:
        del group["skipped"]
    return {"model": copy.deepcopy(model.state_dict()), **packed}


def assert_same(one: Any, two: Any) -> None:
    torch.testing.assert_close(one, two, rtol=0, atol=0)


@pytest.mark.parametrize("method", METHODS)
def test_bf16_autocast_trains(method: type[SharpnessAware]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = build(method, model)
    seen: set[torch.dtype] = set()
    model[0].register_forward_hook(lambda _m, _i, output: seen.add(output.dtype))
    losses = [float(optimizer.step(closure_for(optimizer, model, autocast=torch.bfloat16))) for _ in range(30)]
    assert seen == {torch.bfloat16}
    assert losses[-1] < 0.5 * losses[0]
    assert all(p.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize("method", METHODS)
def test_autocast_around_all_steps_is_autocast_in_the_closure(method: type[SharpnessAware]) -> None:
    """A region keeps its copies of the weights until it ends, though these move from pass to pass."""
    inside, around = network(dtype=torch.float32), network(dtype=torch.float32)
    optimizer = build(method, inside)
    for _ in range(3):
        optimizer.step(closure_for(optimizer, inside, autocast=torch.bfloat16))
    optimizer = build(method, around)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(3):
            optimizer.step(closure_for(optimizer, around, autocast=torch.bfloat16))
    assert_same(inside.state_dict(), around.state_dict())


@pytest.mark.parametrize("method", [SAM, MeCAM])
def test_fp16_autocast_with_a_scaler_trains(method: type[SharpnessAware]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    optimizer, scaler = build(method, model), scaler_for(2.0**24)  # too large at first: some steps are skipped
    losses = []
    for _ in range(60):
        closure = closure_for(optimizer, model, scaler, autocast=torch.float16)
        losses.append(float(optimizer.step(closure, scaler=scaler)))
        scaler.update()
    assert 0 < optimizer.skipped < 20
    assert scaler.get_scale() == 2.0 ** (24 - optimizer.skipped)
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (torch.float64, {}),
        (torch.float32, {"clip_norm": 0.01}),
        (torch.float32, {"fused": True}),
        (torch.float64, {"base": torch.optim.SGD, "momentum": 0.9}),
    ],
    ids=["float64", "clipped", "fused", "sgd"],
)
def test_scaling_by_a_power_of_two_changes_no_bit(
    method: type[SharpnessAware], dtype: torch.dtype, options: dict[str, Any]
) -> None:
    a, b = network(dtype=dtype), network(dtype=dtype)
    plain, scaled = build(method, a, **options), build(method, b, **options)
    scaler = scaler_for()
    for _ in range(4):
        loss = plain.step(closure_for(plain, a))
        assert_same(scaled.step(closure_for(scaled, b, scaler), scaler=scaler), loss)
        scaler.update()
        assert_same(everything(a, plain), everything(b, scaled))
    assert scaled.skipped == 0


def test_clip_norm_bounds_the_unscaled_gradient() -> None:
    model = network()
    optimizer, scaler = build(SAM, model, torch.optim.SGD, clip_norm=0.01), scaler_for(2.0**16)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step(closure_for(optimizer, model, scaler), scaler=scaler)
    moved = torch.cat([(p.detach() - old).flatten() for p, old in zip(model.parameters(), before, strict=True)])
    torch.testing.assert_close(float(moved.norm()), 0.05 * 0.01, rtol=1e-3, atol=0)


@pytest.mark.parametrize(("method", "number"), PASSES)
@pytest.mark.parametrize(
    ("spoil", "options"), [(torch.inf, {}), (1e39, {"fused": True})], ids=["inf", "huge loss, fused Adam"]
)
def test_an_overflow_in_any_pass_skips_the_step(
    method: type[SharpnessAware], number: int, spoil: float, options: dict[str, Any]
) -> None:
    model, twin = network(dtype=torch.float32), network(dtype=torch.float32)
    optimizer, undisturbed = build(method, model, **options), build(method, twin, **options)
    scaler, other = scaler_for(), scaler_for()
    for _ in range(2):
        optimizer.step(closure_for(optimizer, model, scaler), scaler=scaler)
        scaler.update()
        undisturbed.step(closure_for(undisturbed, twin, other), scaler=other)
        other.update()
    before = everything(model, optimizer)

    closure = closure_for(optimizer, model, scaler, spoil=lambda i: spoil if i == number else 1.0)
    optimizer.step(closure, scaler=scaler)
    scaler.update()
    assert_same(everything(model, optimizer), before)
    assert optimizer.skipped == 1
    assert scaler.get_scale() == 2.0**9

    optimizer.step(closure_for(optimizer, model, scaler), scaler=scaler)
    undisturbed.step(closure_for(undisturbed, twin, other), scaler=other)
    assert_same(everything(model, optimizer), everything(twin, undisturbed))


@pytest.mark.parametrize("method", METHODS)
def test_an_overflow_in_a_single_weight_is_seen_though_the_formula_may_drop_it(method: type[SharpnessAware]) -> None:
    """ESAM's mask leaves tensors out, and n(g) is 0 where ||g|| is infinite: the combined gradient can be finite."""
    model = network(dtype=torch.float32)
    optimizer, scaler = build(method, model), scaler_for()
    for _ in range(2):  # 2, not 0: LookSAM looks
        optimizer.step(closure_for(optimizer, model, scaler), scaler=scaler)
        scaler.update()
    before, calls = everything(model, optimizer), 0

    def closure() -> Tensor:
        nonlocal calls
        loss = closure_for(optimizer, model, scaler)()
        if calls == 0:
            model[0].weight.grad[0, 0] = torch.inf  # type: ignore[index]
        calls += 1
        return loss

    optimizer.step(closure, scaler=scaler)
    scaler.update()
    assert optimizer.skipped == 1
    assert scaler.get_scale() == 2.0**9
    assert_same(everything(model, optimizer), before)


def test_esam_sees_an_overflow_in_every_tensor_its_mask_leaves_out() -> None:
    for seed in range(4):
        for tensor in range(4):
            model = network(dtype=torch.float32)
            optimizer, scaler = build(ESAM, model, beta=0.5, seed=seed), scaler_for()
            before, calls = everything(model, optimizer), 0

            def closure(model: nn.Module = model, optimizer: Any = optimizer, tensor: int = tensor) -> Tensor:
                nonlocal calls
                loss = closure_for(optimizer, model, scaler)()  # noqa: B023
                if calls == 0:
                    list(model.parameters())[tensor].grad.view(-1)[0] = torch.inf  # type: ignore[union-attr]
                calls += 1
                return loss

            optimizer.step(closure, scaler=scaler)
            assert_same(everything(model, optimizer)["model"], before["model"])
            assert optimizer.skipped == 1


@pytest.mark.parametrize("method", [FSAM, LookSAM])
@pytest.mark.parametrize(
    "options",
    [{}, {"fused": True}, {"base": torch.optim.SGD, "momentum": 0.9, "fused": True}],
    ids=["Adam", "fused Adam", "fused SGD"],
)
def test_a_first_step_that_is_skipped_keeps_nothing(method: type[SharpnessAware], options: dict[str, Any]) -> None:
    """Not even what torch's fused SGD leaves behind, a momentum that nobody has written to."""
    model = network(dtype=torch.float32)
    optimizer, scaler = build(method, model, **options), scaler_for()
    optimizer.step(closure_for(optimizer, model, scaler, spoil=lambda _: torch.inf), scaler=scaler)
    assert optimizer.own_state == {}
    assert dict(optimizer.state) == {}
    assert optimizer.param_groups[0]["taken"] == 0


def test_a_disabled_scaler_is_none() -> None:
    a, b = network(), network()
    plain, scaled = build(MeCAM, a), build(MeCAM, b)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for _ in range(3):
        plain.step(closure_for(plain, a))
        scaled.step(closure_for(scaled, b, scaler), scaler=scaler)
        scaler.update()
    assert_same(everything(a, plain), everything(b, scaled))
    spoiled = closure_for(scaled, b, scaler, spoil=lambda _: torch.nan)
    with pytest.raises(FloatingPointError, match="not finite"):  # nonfinite="raise", the default, is back in charge
        scaled.step(spoiled, scaler=scaler)


def test_a_scaler_decides_over_nonfinite() -> None:
    """The scaler's way with an overflow is to skip; 'raise' and 'ignore' are for training without one."""
    for nonfinite in ("raise", "skip", "ignore"):
        model = network(dtype=torch.float32)
        optimizer, scaler = build(WSAM, model, nonfinite=nonfinite), scaler_for()
        optimizer.step(closure_for(optimizer, model, scaler, spoil=lambda i: (1.0, torch.inf)[i]), scaler=scaler)
        assert optimizer.skipped == 1


@pytest.mark.parametrize("overflow", [False, True])
def test_scaler_step_without_closure_tells_the_way_out(overflow: bool) -> None:
    model = network(dtype=torch.float32)
    optimizer, scaler = build(SAM, model), scaler_for()
    closure_for(optimizer, model, scaler, spoil=lambda _: torch.inf if overflow else 1.0)()
    with pytest.raises(TypeError, match=r"optimizer\.step\(closure, scaler=scaler\)"):
        scaler.step(optimizer)
    optimizer.step(closure_for(optimizer, model, scaler), scaler=scaler)  # the optimizer is as good as before
    assert optimizer.param_groups[0]["taken"] == 1


def test_scaler_step_with_a_closure_tells_the_way_out_too() -> None:
    """Taken for a plain step, it would feed the base gradients that are 1024 times too large."""
    model = network(dtype=torch.float32)
    optimizer, scaler = build(SAM, model), scaler_for()
    closure = closure_for(optimizer, model, scaler)
    closure()
    before = everything(model, optimizer)
    with pytest.raises(TypeError, match=r"optimizer\.step\(closure, scaler=scaler\)"):
        scaler.step(optimizer, closure)
    assert_same(everything(model, optimizer), before)


def test_a_closure_that_does_not_scale_its_loss_is_refused() -> None:
    model = network(dtype=torch.float32)
    optimizer = build(SAM, model)
    before = everything(model, optimizer)
    with pytest.raises(RuntimeError, match=r"scaler\.scale\(loss\)\.backward\(\)"):
        optimizer.step(closure_for(optimizer, model), scaler=scaler_for())
    assert_same(everything(model, optimizer), before)
