"""Batch-norm statistics and other buffers change as in one plain pass, bit for bit, for every method."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.optim import MSAM, OPTIMIZERS, SAM, MeCAM, SharpnessAware
from mecam.optim._buffers import Buffers

METHODS = [entry.sharpness_aware for entry in OPTIMIZERS.values() if entry.sharpness_aware is not None]
torch.manual_seed(0)
X, Y = torch.randn(8, 3, 6, 6), torch.randint(0, 4, (8,))

GIVEN = pytest.mark.parametrize("given", [True, False], ids=["model given", "model found"])


class Counter(nn.Module):
    """Replaces its buffer by a new tensor instead of writing to it, and makes one only when it first runs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("made", None)
        self.register_buffer("constant", torch.ones(1).expand(3))  # cannot be written to

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls = self.calls + x.detach().mean()
            self.made = x.detach().mean() if self.made is None else self.made * 0.5
        return x


class Late(nn.Module):
    """Registers its buffer when it first runs."""

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "scale"):
            self.register_buffer("scale", x.detach().std())
        self.scale = self.scale * 0.9
        return x


class Sometimes(nn.Module):
    """Runs its layer only in the calls it is told (stochastic depth)."""

    def __init__(self, layer: nn.Module, *calls: int) -> None:
        super().__init__()
        self.layer, self.calls, self.call = layer, calls, 0

    def forward(self, x: Tensor) -> Tensor:
        self.call += 1
        return self.layer(x) if self.call - 1 in self.calls else x


def network(*extra: nn.Module) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.BatchNorm2d(4, momentum=None),
        nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        *extra,
        nn.Flatten(),
        nn.Linear(64, 4),
    )


def buffers(model: nn.Module) -> dict[str, Tensor | None]:
    """Copies of all of them, the empty ones included."""
    return {
        f"{path}.{name}": None if buffer is None else buffer.clone()
        for path, module in model.named_modules()
        for name, buffer in module._buffers.items()
    }


def assert_same(one: dict[str, Tensor | None], two: dict[str, Tensor | None]) -> None:
    assert one.keys() == two.keys()
    for name, buffer in one.items():
        other = two[name]
        assert (buffer is None) == (other is None), name
        if buffer is not None and other is not None:
            assert torch.equal(buffer, other), name


def closure_for(optimizer: torch.optim.Optimizer, forward: Callable[[Tensor], Tensor]) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(forward(X), Y)
        loss.backward()
        return loss

    return closure


def build(method: type[SharpnessAware], model: nn.Module, given: bool, **options: Any) -> Any:
    return method(model.parameters(), torch.optim.SGD, lr=0.1, model=model if given else None, **options)


def any_global_hook() -> bool:
    return bool(torch.nn.modules.module._global_forward_pre_hooks)


def plain_pass(model: nn.Module) -> dict[str, Tensor | None]:
    """The model's buffers after one forward on the batch."""
    model(X)
    return buffers(model)


@GIVEN
@pytest.mark.parametrize("method", [method for method in METHODS if method is not MSAM])  # its pass is not a plain one
def test_a_step_leaves_the_buffers_of_one_plain_pass(method: type[SharpnessAware], given: bool) -> None:
    model = network(Counter())
    optimizer = build(method, model, given)
    tensors = dict(model.named_buffers())
    for _ in range(3):
        expected = plain_pass(copy.deepcopy(model))
        optimizer.step(closure_for(optimizer, model))
        assert_same(buffers(model), expected)
    assert model[1].num_batches_tracked == 3
    assert all(model.get_buffer(name) is b for name, b in tensors.items() if "calls" not in name)


class Averaged(nn.Module):
    """A network and a target in eval mode, whose statistics the closure writes to."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.online = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 4))
        self.target = copy.deepcopy(self.online).eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.online(x) + self.target(x)
        return out

    @property
    def norm(self) -> Any:
        return self.target[1]


def in_place(model: Averaged) -> None:
    model.norm.running_mean.mul_(0.9).add_(0.1)


def as_new_tensor(model: Averaged) -> None:
    model.norm.running_mean = model.norm.running_mean * 0.9 + 0.1


def by_data(model: Averaged) -> None:
    model.norm.running_mean.data.mul_(0.9).add_(0.1)


@pytest.mark.parametrize(
    ("write", "start", "given"),
    [
        *((in_place, start, given) for start in (0, 2) for given in (True, False)),
        *((by_data, 0, given) for given in (True, False)),
        (as_new_tensor, 0, True),
    ],
)
def test_statistics_that_the_closure_writes_to_change_once_a_step(
    write: Callable[[Averaged], None], start: int, given: bool
) -> None:
    """Also of a batch norm in eval mode, and from a later step on."""
    model, plain = Averaged(), Averaged()
    optimizer = build(SAM, model, given)
    closure = closure_for(optimizer, model)
    for step in range(4):

        def writing(step: int = step) -> Tensor:
            loss = closure()
            if step >= start:
                with torch.no_grad():
                    write(model)
            return loss

        optimizer.step(writing)
        if step >= start:
            write(plain)
        torch.testing.assert_close(model.norm.running_mean, plain.norm.running_mean, rtol=0, atol=0)


def test_statistics_written_to_in_a_later_pass_alone_are_refused() -> None:
    model = Averaged()
    optimizer = build(SAM, model, given=True)
    closure = closure_for(optimizer, model)
    optimizer.step(closure)

    def writing() -> Tensor:
        if not optimizer.first_pass:
            in_place(model)
        return closure()

    with torch.no_grad(), pytest.raises(RuntimeError, match="a batch norm in eval mode got other statistics"):
        optimizer.step(writing)


def test_frozen_batch_norm_is_not_copied() -> None:
    model = network()
    model.eval()
    optimizer = build(SAM, model, given=True)
    saved: list[int] = []
    for _ in range(2):
        passes: list[Buffers] = []

        def closure(passes: list[Buffers] = passes) -> Tensor:
            assert optimizer._running is not None
            passes.append(optimizer._running.buffers)
            return closure_for(optimizer, model)()

        optimizer.step(closure)
        saved.append(sum(len(buffers) for buffers, *_ in passes[-1].saved))
    assert saved == [9, 3]  # those of two batch norms in the first step alone, and of the instance norm


@pytest.mark.skipif(not hasattr(torch, "_foreach_clone"), reason="older torch cannot copy quantized tensors")
def test_quantized_buffers() -> None:
    model = network()
    model.register_buffer("codes", torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8))
    optimizer = build(SAM, model, given=True)
    for _ in range(2):
        optimizer.step(closure_for(optimizer, model))


def test_batch_norm_in_eval_mode_without_its_counter() -> None:
    model = network()
    model.eval()
    del model[1].num_batches_tracked
    optimizer = build(SAM, model, given=True)
    for _ in range(2):
        optimizer.step(closure_for(optimizer, model))


@GIVEN
def test_frozen_batch_norm_stays_untouched(given: bool) -> None:
    model = network()
    for layer in (model[1], model[3], model[4]):
        layer.eval()
    before = buffers(model)
    optimizer = build(MeCAM, model, given)
    for _ in range(2):
        optimizer.step(closure_for(optimizer, model))
    assert_same(buffers(model), before)


@GIVEN
def test_a_closure_may_switch_between_training_and_evaluation(given: bool) -> None:
    """Targets from the model in evaluation mode, the loss in training mode: the first call does not tell it all."""
    model, plain = network(), network()
    optimizer = build(MeCAM, model, given)

    def closure() -> Tensor:
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            targets = model(X).softmax(1)
        model.train()
        loss = F.cross_entropy(model(X), targets)
        loss.backward()
        model.eval()
        return loss

    expected = plain_pass(plain)
    optimizer.step(closure)
    assert_same(buffers(model), expected)


@GIVEN
@pytest.mark.parametrize(("calls", "updates"), [((0,), 1), ((1,), 0), ((2,), 0), ((0, 2), 1), ((1, 2), 0)])
def test_a_layer_that_runs_in_some_passes_only(given: bool, calls: tuple[int, ...], updates: int) -> None:
    model = network(Sometimes(nn.Sequential(nn.BatchNorm2d(4), Counter()), *calls))
    plain = network(Sometimes(nn.Sequential(nn.BatchNorm2d(4), Counter()), *calls))
    expected = plain_pass(plain)
    optimizer = build(MeCAM, model, given)
    optimizer.step(closure_for(optimizer, model))
    assert_same(buffers(model), expected)
    assert model[5].layer[0].num_batches_tracked == updates


@GIVEN
@pytest.mark.parametrize("method", [SAM, MeCAM])
def test_a_buffer_that_is_registered_late(method: type[SharpnessAware], given: bool) -> None:
    """In the first pass, as in a plain one; in a later pass there is nothing to go back to, and it stays."""
    model = network(Late(), Sometimes(Late(), 1))
    expected = plain_pass(copy.deepcopy(model))
    optimizer = build(method, model, given)
    optimizer.step(closure_for(optimizer, model))
    found = buffers(model)
    assert found.pop("6.layer.scale") is not None
    assert_same(found, expected)


@GIVEN
@pytest.mark.parametrize("method", [SAM, MeCAM])
def test_micro_batches_in_the_closure_are_as_many_plain_updates(method: type[SharpnessAware], given: bool) -> None:
    model, plain = network(Counter()), network(Counter())
    optimizer = build(method, model, given)

    def closure() -> Tensor:
        optimizer.zero_grad()
        losses = []
        for x, y in zip(X.chunk(4), Y.chunk(4), strict=True):
            loss = F.cross_entropy(model(x), y) / 4
            loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    for x in X.chunk(4):
        plain(x)
    optimizer.step(closure)
    assert_same(buffers(model), buffers(plain))
    assert model[1].num_batches_tracked == 4


@pytest.mark.parametrize("given", [True, False])
def test_batch_norm_in_a_part_that_is_not_trained(given: bool) -> None:
    """A frozen backbone in training mode; given is the whole network, of which the optimizer owns the head."""
    model, plain = network(), network()
    optimizer = SAM(model[-1].parameters(), torch.optim.SGD, lr=0.1, model=model if given else None)
    expected = plain_pass(plain)
    optimizer.step(closure_for(optimizer, model))
    assert_same(buffers(model), expected)


def test_modules_called_one_by_one_are_all_found() -> None:
    model, plain = network(Counter()), network(Counter())
    optimizer = build(MeCAM, model, given=False)

    def forward(x: Tensor) -> Tensor:
        for layer in model:
            x = layer(x)
        return x

    expected = plain_pass(plain)
    optimizer.step(closure_for(optimizer, forward))
    assert_same(buffers(model), expected)


@GIVEN
@pytest.mark.parametrize("failing", [1, 2])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_later_pass_that_raises(given: bool, failing: int, error: type[BaseException]) -> None:
    """Outside the model and deep inside it; and no hook stays behind."""
    for inside in (False, True):
        model = network(Counter() if error is ValueError else nn.BatchNorm2d(4), nn.Identity())
        expected = plain_pass(copy.deepcopy(model))
        optimizer, calls = build(MeCAM, model, given), 0

        def fail(*_: Any) -> None:
            nonlocal calls
            calls += 1
            if calls > failing:
                raise error("no")

        if inside:
            model[6].register_forward_hook(fail)

        def forward(x: Tensor, model: nn.Module = model, inside: bool = inside) -> Tensor:
            logits: Tensor = model(x)
            if not inside:
                fail()
            return logits

        with pytest.raises(error):
            optimizer.step(closure_for(optimizer, forward))
        assert_same(buffers(model), expected)
        assert not any_global_hook()
        assert all(not m._forward_hooks for m in model.modules() if m is not model[6])


def test_no_hook_stays_behind() -> None:
    model = network()
    optimizer = build(MeCAM, model, given=False)
    during: list[bool] = []
    model[0].register_forward_pre_hook(lambda *_: during.append(any_global_hook()))
    optimizer.step(closure_for(optimizer, model))
    assert during == [False] * 3  # inside the model there is nothing to watch
    assert not any_global_hook()
    assert all(not m._forward_hooks for m in model.modules())


def test_users_own_hooks_run_as_ever() -> None:
    model = network()
    optimizer = build(MeCAM, model, given=False)
    seen: list[str] = []
    handles = [
        torch.nn.modules.module.register_module_forward_pre_hook(lambda m, _: seen.append(type(m).__name__)),
        model.register_forward_hook(lambda *_: seen.append("done")),
    ]
    optimizer.step(closure_for(optimizer, model))
    for handle in handles:
        handle.remove()
    assert seen == [*["Sequential", *(type(m).__name__ for m in model), "done"] * 3]


def test_buffers_lent_by_functional_call_are_not_hung_up_in_the_model() -> None:
    model = network()
    own = dict(model.named_buffers())
    lent = {name: buffer.clone() for name, buffer in own.items()}
    before, expected = buffers(model), plain_pass(copy.deepcopy(model))
    optimizer = build(SAM, model, given=False)
    optimizer.step(closure_for(optimizer, lambda x: torch.func.functional_call(model, lent, (x,))))
    assert all(model.get_buffer(name) is buffer for name, buffer in own.items())
    assert_same(buffers(model), before)
    assert_same({name: buffer.clone() for name, buffer in lent.items()}, expected)


@GIVEN
def test_spectral_norm_keeps_the_power_iteration_of_one_pass(given: bool) -> None:
    def spectral() -> nn.Module:
        torch.manual_seed(2)
        return nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Conv2d(4, 4, 1)))

    model, plain = network(spectral()), network(spectral())
    optimizer = build(MeCAM, model, given)
    expected = plain_pass(plain)
    optimizer.step(closure_for(optimizer, model))
    assert_same(buffers(model), expected)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@GIVEN
def test_scripted_modules(given: bool) -> None:
    plain = network()
    model = torch.jit.script(network())
    optimizer = build(MeCAM, model, given)
    expected = plain_pass(plain)
    optimizer.step(closure_for(optimizer, model))
    assert_same(dict(model.named_buffers()), {name: b for name, b in expected.items() if b is not None})
