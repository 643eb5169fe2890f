"""Under Lightning's Trainer a run is the plain PyTorch loop; what Lightning cannot do is refused, or shown here."""

import copy
import logging
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from mecam.optim import FSAM, SAM, MeCAM, SharpnessAware

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lightning.pytorch as pl
    from lightning.pytorch.plugins.precision import MixedPrecision

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*`log_every_n_steps`"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec"),
    pytest.mark.filterwarnings("ignore:.*ckpt_path.*"),
]
works_with = partial(pytest.mark.works_with, "Lightning", packages=["lightning"])
BATCH, EPOCHS = 8, 3
torch.manual_seed(0)
INPUTS, TARGETS = torch.randn(32, 6), torch.randint(0, 3, (32,))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def loader(dtype: torch.dtype = torch.float32) -> DataLoader[Any]:
    return DataLoader(TensorDataset(INPUTS.to(dtype), TARGETS), batch_size=BATCH)


def optimizer_for(method: type[SharpnessAware], model: nn.Module, **options: Any) -> Any:
    return method(model.parameters(), torch.optim.Adam, lr=0.05, weight_decay=1e-3, model=model, **options)


class Classifier(pl.LightningModule):
    """What a user writes: nothing in it is about the number of passes but the line that logs."""

    def __init__(self, method: type[SharpnessAware] = MeCAM, **options: Any) -> None:
        super().__init__()
        self.model, self.method, self.options = network(), method, options
        self.passes: list[bool] = []
        self.learning_rates: list[float] = []

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.passes.append(self.optimizers().first_pass)  # type: ignore[union-attr]
        if self.optimizers().first_pass:  # type: ignore[union-attr]
            self.log("loss", loss, on_epoch=True)
            self.learning_rates.append(self.lr_schedulers().get_last_lr()[0])  # type: ignore[union-attr]
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = optimizer_for(self.method, self.model, **self.options)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * 4)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def fit(module: pl.LightningModule, folder: Path, ckpt_path: Path | None = None, **options: Any) -> pl.Trainer:
    dtype = torch.float64 if options.get("precision") == "64-true" else torch.float32
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"max_epochs": EPOCHS, "enable_checkpointing": False, **options},
    )
    trainer.fit(module, loader(dtype), ckpt_path=ckpt_path)
    return trainer


def plain_loop(
    method: type[SharpnessAware],
    dtype: torch.dtype = torch.float32,
    autocast: torch.dtype | None = None,
    scaler: torch.amp.GradScaler | None = None,
    clip: float | None = None,
    parts: int = 1,
    epochs: int = EPOCHS,
    **options: Any,
) -> tuple[nn.Module, list[Tensor]]:
    """The same run without Lightning, and its losses; `clip` clips each pass's gradient."""
    model = network().to(dtype)
    optimizer = optimizer_for(method, model, **options)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * 4)
    losses = []
    for x, y in list(loader(dtype)) * epochs:

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            total = torch.zeros(())
            for some_x, some_y in zip(x.chunk(parts), y.chunk(parts), strict=True):
                with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
                    loss = F.cross_entropy(model(some_x), some_y) / parts
                (loss if scaler is None else scaler.scale(loss)).backward()
                total = total + loss.detach()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            return total

        losses.append(optimizer.step(closure, scaler=scaler))
        if scaler is not None:
            scaler.update()
        schedule.step()
    return model, losses


def assert_same(one: nn.Module, two: nn.Module) -> None:
    """Weights and batch-norm statistics, bit for bit."""
    assert one.state_dict().keys() == two.state_dict().keys()
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, two.state_dict()[name]), name


@works_with("automatic optimization in float32, float64 and bf16-mixed: updates equal the plain loop's, bit for bit")
@pytest.mark.parametrize("method", [SAM, MeCAM, FSAM])
@pytest.mark.parametrize(
    ("precision", "loop"),
    [("32-true", {}), ("64-true", {"dtype": torch.float64}), ("bf16-mixed", {"autocast": torch.bfloat16})],
)
def test_a_fit_is_the_plain_loop(
    method: type[SharpnessAware], precision: str, loop: dict[str, Any], tmp_path: Path
) -> None:
    module = Classifier(method)
    trainer = fit(module, tmp_path, precision=precision)
    assert_same(module.model, plain_loop(method, **loop)[0])
    assert module.model[1].num_batches_tracked == 12
    assert trainer.global_step == 12
    assert len(set(module.learning_rates)) == 12, "the schedule moved once a step"


def test_the_training_step_runs_once_a_pass_and_logs_once_a_step(tmp_path: Path) -> None:
    module = Classifier(MeCAM)
    seen: list[int] = []
    hook = module.model.register_forward_hook(lambda _m, _i, logits: seen.append(len(logits)))
    trainer = fit(module, tmp_path, max_epochs=1)
    hook.remove()
    assert module.passes == [True, False, False] * 4
    assert seen == [BATCH] * 12

    _, losses = plain_loop(MeCAM, epochs=1)
    torch.testing.assert_close(trainer.callback_metrics["loss_epoch"], torch.stack(losses).mean())  # at theta


def test_the_wrapped_optimizer_shows_what_the_optimizer_shows(tmp_path: Path) -> None:
    module = Classifier(FSAM, track=True)
    fit(module, tmp_path, max_epochs=1)
    wrapped: Any = module.optimizers()
    inner = module.optimizers(use_pl_optimizer=False)
    assert isinstance(wrapped, FSAM)
    assert wrapped.param_groups is inner.param_groups  # type: ignore[union-attr]
    assert (wrapped.skipped, wrapped.first_pass, wrapped.needs_graph) == (0, True, False)
    assert len(wrapped.last.losses) == 2
    torch.testing.assert_close(wrapped.state_dict(), inner.state_dict(), rtol=0, atol=0)  # type: ignore[union-attr]


@works_with("ckpt_path: ends as an uninterrupted run, bit for bit")
@pytest.mark.parametrize("method", [MeCAM, FSAM])
def test_resuming_from_a_checkpoint_ends_bit_for_bit_the_same(method: type[SharpnessAware], tmp_path: Path) -> None:
    straight = Classifier(method)
    fit(straight, tmp_path / "straight")

    first = Classifier(method)
    trainer = fit(first, tmp_path / "first", max_epochs=1, enable_checkpointing=True)
    checkpoint = tmp_path / "first" / "one.ckpt"
    trainer.save_checkpoint(checkpoint)
    resumed = Classifier(method)
    fit(resumed, tmp_path / "resumed", ckpt_path=checkpoint)
    assert_same(resumed.model, straight.model)
    assert not torch.equal(first.model[0].weight, straight.model[0].weight)


def test_gradient_accumulation_by_the_trainer_is_refused(tmp_path: Path) -> None:
    module = Classifier(SAM)
    before = copy.deepcopy(list(module.model.parameters()))
    with pytest.raises(RuntimeError, match=r"did not clear.*Lightning's accumulate_grad_batches"):
        fit(module, tmp_path, accumulate_grad_batches=2)
    assert all(map(torch.equal, module.model.parameters(), before))


def test_gradient_clip_val_clips_every_pass_and_clip_norm_the_combined_gradient(tmp_path: Path) -> None:
    clipped, ours = Classifier(MeCAM), Classifier(MeCAM, clip_norm=0.05)
    fit(clipped, tmp_path, gradient_clip_val=0.05)
    assert_same(clipped.model, plain_loop(MeCAM, clip=0.05)[0])
    fit(ours, tmp_path)
    assert_same(ours.model, plain_loop(MeCAM, clip_norm=0.05)[0])
    assert not torch.allclose(ours.model[0].weight, clipped.model[0].weight, atol=1e-3)


def test_for_sam_both_clip_alike(tmp_path: Path) -> None:
    """Of its first pass only the direction is used."""
    clipped, ours = Classifier(SAM), Classifier(SAM, clip_norm=0.05)
    fit(clipped, tmp_path, precision="64-true", gradient_clip_val=0.05)
    fit(ours, tmp_path, precision="64-true")
    for one, two in zip(clipped.model.parameters(), ours.model.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-9)


def half_precision(scale: float = 2.0**10) -> MixedPrecision:
    """What Lightning takes for precision="16-mixed" on a GPU."""
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=scale))


@pytest.mark.parametrize("scale", [2.0**10, 2.0**60], ids=["", "with an overflow"])
def test_16_mixed_is_refused_with_the_way_out(scale: float, tmp_path: Path) -> None:
    module = Classifier(SAM)
    with pytest.raises(TypeError, match=r"optimizer\.step\(closure, scaler=scaler\)[\s\S]*In Lightning:") as caught:
        fit(module, tmp_path, plugins=[half_precision(scale)])
    assert "optimizer.optimizer.step(optimizer_closure, scaler=scaler)" in str(caught.value)


def test_16_mixed_on_a_cpu_is_bf16(tmp_path: Path) -> None:
    """Lightning says so in a warning, and trains."""
    module = Classifier(SAM)
    with pytest.warns(UserWarning, match=r"fp16 is not supported on CPU.*bf16-mixed"):
        fit(module, tmp_path, precision="16-mixed")
    assert_same(module.model, plain_loop(SAM, autocast=torch.bfloat16)[0])


class HalfClassifier(Classifier):
    """The way out of 16-mixed that the error shows."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any) -> None:  # type: ignore[override]  # noqa: ARG002
        scaler: Any = self.trainer.precision_plugin.scaler
        optimizer.optimizer.step(optimizer_closure, scaler=scaler)
        scaler.update()


@pytest.mark.parametrize("method", [MeCAM, FSAM])
def test_the_way_out_of_16_mixed(method: type[SharpnessAware], tmp_path: Path) -> None:
    module, plugin = HalfClassifier(method), half_precision()
    trainer = fit(module, tmp_path, plugins=[plugin])
    assert module.passes == [True, *[False] * (method.passes - 1)] * 12
    assert trainer.global_step == 12
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    assert_same(module.model, plain_loop(method, autocast=torch.float16, scaler=scaler)[0])


class ManualClassifier(Classifier):
    """Manual optimization: the closure is yours, and so is accumulation inside it."""

    def __init__(self) -> None:
        super().__init__(MeCAM)
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor], _: int) -> None:  # type: ignore[override]
        optimizer: Any = self.optimizers()
        x, y = batch

        def closure() -> Tensor:
            optimizer.zero_grad()
            losses = []
            for part_x, part_y in zip(x.chunk(2), y.chunk(2), strict=True):
                loss = F.cross_entropy(self.model(part_x), part_y) / 2
                self.manual_backward(loss)
                losses.append(loss.detach())
            return torch.stack(losses).sum()

        optimizer.step(closure)
        self.lr_schedulers().step()  # type: ignore[union-attr]


@works_with("manual optimization, accumulation inside the closure")
def test_manual_optimization_and_accumulation_in_the_closure(tmp_path: Path) -> None:
    module = ManualClassifier()
    trainer = fit(module, tmp_path)
    assert trainer.global_step == 12
    assert_same(module.model, plain_loop(MeCAM, parts=2)[0])


class Forgetful(ManualClassifier):
    """Manual optimization as for other optimizers."""

    def training_step(self, batch: list[Tensor], _: int) -> None:  # type: ignore[override]
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(F.cross_entropy(self.model(batch[0]), batch[1]))
        optimizer.step()


def test_manual_optimization_without_a_closure_is_refused_with_one(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"the closure did nothing[\s\S]*def closure\(\):"):
        fit(Forgetful(), tmp_path)


class Averaged(Classifier):
    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        return F.cross_entropy(self.model(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return optimizer_for(self.method, self.model)


@pytest.mark.filterwarnings("ignore:.*SWA:UserWarning")
def test_stochastic_weight_averaging_ends_with_its_epoch_for_batch_norm(tmp_path: Path) -> None:
    """It has no backward, and Lightning calls step() at its end."""
    module = Averaged(MeCAM)
    averaging = pl.callbacks.StochasticWeightAveraging(swa_lrs=0.05, swa_epoch_start=1)
    fit(module, tmp_path, callbacks=[averaging])
    assert averaging._average_model is not None
    averaged: Any = averaging._average_model
    assert all(map(torch.equal, module.model.parameters(), averaged.model.parameters()))
    assert module.model[1].num_batches_tracked == 4


class SkippingClassifier(Classifier):
    def training_step(self, batch: list[Tensor], index: int) -> Any:  # type: ignore[override]
        return None if index == 1 else super().training_step(batch, index)


@pytest.mark.filterwarnings("ignore:.*returned `None`")
def test_a_training_step_may_leave_out_a_batch(tmp_path: Path) -> None:
    module = SkippingClassifier(MeCAM)
    trainer = fit(module, tmp_path)
    assert module.model[1].num_batches_tracked == 9
    assert trainer.optimizers[0].param_groups[0]["taken"] == 9
