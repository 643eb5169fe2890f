"""Under Accelerate a run is the plain PyTorch loop; what Accelerate cannot do is refused, or shown here."""

import copy
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from mecam.optim import FSAM, SAM, MeCAM, SharpnessAware

works_with = partial(pytest.mark.works_with, "Accelerate", packages=["accelerate"])
STEPS = 6
torch.manual_seed(0)
INPUTS, TARGETS = torch.randn(STEPS * 8, 6), torch.randint(0, 3, (STEPS * 8,))


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """Accelerate keeps its state in singletons, and silences torch's schedulers when it is imported."""
    with warnings.catch_warnings():
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        yield
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


class Run:
    """What a user writes, with Accelerate or, without an accelerator, in plain PyTorch."""

    def __init__(self, method: type[SharpnessAware], accelerator: Accelerator | None = None) -> None:
        self.accelerator = accelerator
        self.model: Any = network()
        self.inner = method(self.model.parameters(), torch.optim.Adam, lr=0.05, model=self.model)
        self.optimizer: Any = self.inner
        self.schedule: Any = torch.optim.lr_scheduler.CosineAnnealingLR(self.inner, T_max=STEPS)
        self.loader: Any = DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=8)
        self.autocast: torch.dtype | None = None
        if accelerator is not None:
            self.model, self.optimizer, self.loader, self.schedule = accelerator.prepare(
                self.model, self.optimizer, self.loader, self.schedule
            )

    def closure(self, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            self.optimizer.zero_grad()
            with torch.autocast("cpu", dtype=self.autocast, enabled=self.autocast is not None):
                logits = self.model(x)
            loss = F.cross_entropy(logits.float(), y)
            if self.accelerator is None:
                loss.backward()
            else:
                self.accelerator.backward(loss)
            return loss

        return closure

    def steps(self, first: int = 0, last: int = STEPS) -> "Run":
        for x, y in list(self.loader)[first:last]:
            self.optimizer.step(self.closure(x, y))
            self.schedule.step()
        return self


def assert_same(one: Run, two: Run) -> None:
    """Weights, batch-norm statistics and the optimizers' state, bit for bit."""
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, two.model.state_dict()[name]), name
    torch.testing.assert_close(one.optimizer.state_dict(), two.optimizer.state_dict(), rtol=0, atol=0)


@works_with("prepare, backward in the closure: updates equal the plain loop's, bit for bit")
@pytest.mark.parametrize("method", [SAM, MeCAM, FSAM])
def test_a_run_is_the_plain_loop(method: type[SharpnessAware]) -> None:
    prepared, plain = Run(method, Accelerator(cpu=True)).steps(), Run(method).steps()
    assert_same(prepared, plain)
    assert prepared.model[1].num_batches_tracked == STEPS
    assert prepared.inner.param_groups[0]["taken"] == STEPS
    assert prepared.inner.param_groups[0]["lr"] == pytest.approx(0, abs=1e-9), "the schedule has run down"


@works_with("bf16")
@pytest.mark.parametrize("method", [SAM, MeCAM])
def test_bf16(method: type[SharpnessAware]) -> None:
    prepared, plain = Run(method, Accelerator(cpu=True, mixed_precision="bf16")), Run(method)
    plain.autocast = torch.bfloat16
    seen: set[torch.dtype] = set()
    prepared.model[0].register_forward_hook(lambda _m, _i, output: seen.add(output.dtype))
    prepared.steps()
    assert seen == {torch.bfloat16}
    assert_same(prepared, plain.steps())


@works_with("save_state and load_state: ends as an uninterrupted run, bit for bit")
@pytest.mark.parametrize("method", [MeCAM, FSAM])
def test_resuming_from_save_state_ends_bit_for_bit_the_same(method: type[SharpnessAware], tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    run = Run(method, accelerator).steps(0, 3)
    accelerator.save_state(str(tmp_path / "state"))
    run.steps(3)

    AcceleratorState._reset_state(reset_partial_state=True)
    fresh = Accelerator(cpu=True)
    resumed = Run(method, fresh)
    fresh.load_state(str(tmp_path / "state"))
    assert resumed.inner.param_groups[0]["taken"] == 3
    assert_same(resumed.steps(3), run)


def test_what_the_wrapper_hides() -> None:
    """Accelerate's step returns nothing, and its wrapper passes on no attribute: ask the optimizer itself."""
    run = Run(SAM, Accelerator(cpu=True))
    passes: list[bool] = []

    def closure() -> Tensor:
        passes.append(run.optimizer.optimizer.first_pass)
        return run.closure(INPUTS[:8], TARGETS[:8])()

    assert run.optimizer.step(closure) is None
    assert passes == [True, False]
    assert run.optimizer.optimizer is run.inner
    assert not hasattr(run.optimizer, "first_pass")


class TestAccumulate:
    """Accelerate's accumulate puts off step() and zero_grad(); with a closure, that puts off the whole step."""

    @pytest.mark.parametrize("backward_first", [False, True])
    def test_it_is_refused_with_the_way_out(self, backward_first: bool) -> None:
        """The first micro-batch would never run; gradients collected before the step would count in one pass only."""
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        run = Run(SAM, accelerator)
        before = copy.deepcopy(list(run.model.parameters()))

        def epoch() -> None:
            for x, y in run.loader:
                with accelerator.accumulate(run.model):
                    if backward_first:
                        accelerator.backward(F.cross_entropy(run.model(x), y))
                    run.optimizer.step(run.closure(x, y))

        with pytest.raises(
            RuntimeError, match=r"Accelerate's accumulate .*steps=2\)[\s\S]*for inputs, targets in micro"
        ):
            epoch()
        assert all(map(torch.equal, run.model.parameters(), before))

    @works_with("accumulation inside the closure")
    def test_micro_batches_belong_into_the_closure(self) -> None:
        accelerator = Accelerator(cpu=True)
        run, plain = Run(MeCAM, accelerator), Run(MeCAM)
        for current in (run, plain):
            batches = list(current.loader)
            for pair in zip(batches[::2], batches[1::2], strict=True):

                def closure(current: Run = current, pair: Any = pair) -> Tensor:
                    current.optimizer.zero_grad()
                    total = torch.zeros(())
                    for x, y in pair:
                        loss = F.cross_entropy(current.model(x), y) / 2
                        (loss.backward if current is plain else lambda: accelerator.backward(loss))()  # noqa: B023
                        total = total + loss.detach()
                    return total

                current.optimizer.step(closure)
        assert_same(run, plain)
        assert run.model[1].num_batches_tracked == STEPS


class TestHalfPrecision:
    """mixed_precision="fp16" is full precision on a CPU; a scaler of its own makes it what it is on a GPU."""

    def prepared(self, method: type[SharpnessAware]) -> Run:
        accelerator = Accelerator(cpu=True)
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        return Run(method, accelerator)

    @pytest.mark.parametrize("gradients", [True, False])
    def test_it_is_refused_with_the_way_out(self, gradients: bool) -> None:
        run = self.prepared(SAM)
        before = copy.deepcopy(list(run.model.parameters()))
        closure = run.closure(INPUTS[:8], TARGETS[:8])
        closure()
        if not gradients:
            run.inner.zero_grad()
        with pytest.raises(TypeError, match=r"In Accelerate: optimizer\.optimizer\.step\(closure, scaler=acc"):
            run.optimizer.step(closure)
        assert all(map(torch.equal, run.model.parameters(), before))

    def test_before_the_first_backward_torch_refuses_in_its_own_words(self) -> None:
        """GradScaler.step does not get as far as the optimizer."""
        run = self.prepared(SAM)
        with pytest.raises(AssertionError, match="_scale is None"):
            run.optimizer.step(run.closure(INPUTS[:8], TARGETS[:8]))

    @pytest.mark.parametrize("method", [MeCAM, FSAM])
    def test_the_way_out(self, method: type[SharpnessAware]) -> None:
        run, plain = self.prepared(method), Run(method).steps()
        scaler: Any = run.accelerator.scaler  # type: ignore[union-attr]
        for x, y in run.loader:
            run.optimizer.optimizer.step(run.closure(x, y), scaler=scaler)
            scaler.update()
            run.schedule.step()
        assert_same(run, plain)
