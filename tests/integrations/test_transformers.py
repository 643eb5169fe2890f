"""Under the Trainer of Transformers a run is the plain loop, with accumulation and after a resume."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from mecam.integrations.transformers import SharpnessAwareMixin
from mecam.optim import FSAM, SAM, MeCAM, SharpnessAware
from tests.integrations.loops import BATCHES, SIZE, assert_close, dataset, network, sgd, take_step

transformers = pytest.importorskip("transformers", reason="Transformers is not installed")
BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-6}


works_with = partial(pytest.mark.works_with, "Transformers", packages=["transformers", "accelerate"])


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    from accelerate.state import AcceleratorState, GradientState

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        yield
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


class Classifier(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.network = network(dtype)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.network(x)
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


class SharpnessAwareTrainer(SharpnessAwareMixin, transformers.Trainer):  # type: ignore[misc, name-defined]
    pass


def rows(dtype: torch.dtype) -> list[dict[str, Tensor]]:
    return [{"x": x, "labels": y} for x, y in dataset(dtype)]


def trainer(
    folder: Path,
    method: type[SharpnessAware] = MeCAM,
    dtype: torch.dtype = torch.float64,
    kind: Any = SharpnessAwareTrainer,
    own: dict[str, Any] | None = None,
    loss: Callable[..., Tensor] | None = None,
    **arguments: Any,
) -> Any:
    """Build a trainer; `own` are options of the optimizer, `loss` is a `compute_loss_func`."""
    settings = {
        "output_dir": str(folder),
        "use_cpu": True,
        "per_device_train_batch_size": SIZE,
        "num_train_epochs": 2,
        "train_sampling_strategy": "sequential",
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }
    model = Classifier(dtype)
    return kind(
        model,
        transformers.TrainingArguments(**{**settings, **arguments}),
        train_dataset=rows(dtype),
        optimizers=(sgd(method, model, **(own or {})), None),
        compute_loss_func=loss,
    )


def by_hand(
    method: type[SharpnessAware], dtype: torch.dtype, window: int, clip_norm: float | None, *, bf16: bool = False
) -> nn.Module:
    """Run the same steps without the Trainer: linear decay, incomplete windows at the end of an epoch."""
    model = network(dtype)
    optimizer = sgd(method, model, clip_norm=clip_norm)
    batches = list(torch.utils.data.DataLoader(dataset(dtype), batch_size=SIZE))
    windows = [batches[start : start + window] for start in range(0, BATCHES, window)] * 2
    schedule = LambdaLR(optimizer, lambda step: 1 - step / len(windows))
    for micro_batches in windows:
        take_step(model, optimizer, micro_batches, bf16=bf16)
        schedule.step()
    return model


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("method", [SAM, MeCAM, FSAM])
@works_with("gradient accumulation 1 and 3, linear schedule, clipping: updates equal the plain loop's")
def test_a_run_is_the_plain_loop(method: type[SharpnessAware], window: int, tmp_path: Path) -> None:
    for dtype, bound in BOUNDS.items():
        run = trainer(tmp_path, method, dtype, gradient_accumulation_steps=window)
        run.train()
        assert_close(run.model.network, by_hand(method, dtype, window, clip_norm=1.0), bound)
        assert run.model.network[1].num_batches_tracked == 2 * BATCHES
        assert run.optimizer.param_groups[0]["taken"] == run.state.global_step == 2 * -(-BATCHES // window)


def test_a_loss_over_the_items_of_a_window(tmp_path: Path) -> None:
    """As language models have it: every item counts alike, in whichever micro-batch it is."""

    def loss(outputs: dict[str, Tensor], labels: Tensor, num_items_in_batch: Tensor) -> Tensor:
        return F.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch

    run = trainer(tmp_path, gradient_accumulation_steps=3, loss=loss)
    run.train()
    assert_close(run.model.network, by_hand(MeCAM, torch.float64, 3, clip_norm=1.0))


def test_max_grad_norm_clips_unless_the_optimizer_does(tmp_path: Path) -> None:
    for own, max_grad_norm, expected in (({}, 0.05, 0.05), ({"clip_norm": 0.1}, 0.05, 0.1), ({}, 0.0, None)):
        run = trainer(tmp_path, own=own, max_grad_norm=max_grad_norm)
        run.train()
        assert_close(run.model.network, by_hand(MeCAM, torch.float64, 1, clip_norm=expected))


@pytest.mark.parametrize("method", [SAM, MeCAM, FSAM])
@works_with("resume_from_checkpoint, in the midst of an epoch: ends as an uninterrupted run")
def test_a_resumed_run_equals_an_uninterrupted_one(method: type[SharpnessAware], tmp_path: Path) -> None:
    settings = {"gradient_accumulation_steps": 2, "train_sampling_strategy": "random"}
    straight = trainer(tmp_path / "straight", method, **settings)
    straight.train()
    first = trainer(tmp_path / "first", method, save_strategy="steps", save_steps=3, **settings)
    first.train()

    resumed = trainer(tmp_path / "resumed", method, **settings)
    resumed.optimizer.param_groups[0]["rho"] = 7.0  # the checkpoint has the right one
    resumed.train(resume_from_checkpoint=str(tmp_path / "first" / "checkpoint-3"))
    assert_close(resumed.model, straight.model, 0)
    torch.testing.assert_close(resumed.optimizer.state_dict(), straight.optimizer.state_dict(), rtol=0, atol=0)
    assert resumed.optimizer.param_groups[0]["rho"] == 0.2
    assert resumed.optimizer.param_groups[0]["taken"] == 8


def test_the_loss_is_logged_at_theta(tmp_path: Path) -> None:
    run = trainer(tmp_path, gradient_accumulation_steps=7, logging_strategy="steps", logging_steps=1, max_steps=1)
    batches = torch.utils.data.DataLoader(dataset(), batch_size=SIZE)
    expected = torch.stack([F.cross_entropy(run.model.network(x), y) for x, y in batches]).mean()
    run.train()
    logged = run.state.log_history[0]
    assert logged["loss"] == pytest.approx(expected.item(), abs=1e-4)
    assert 0 < logged["grad_norm"] <= 1.001


@works_with("bf16: updates equal the plain loop's to 1e-6")
def test_bf16(tmp_path: Path) -> None:
    run = trainer(tmp_path, dtype=torch.float32, bf16=True)
    seen: set[torch.dtype] = set()
    run.model.network[0].register_forward_hook(lambda _m, _i, output: seen.add(output.dtype))
    run.train()
    assert seen == {torch.bfloat16}
    assert_close(run.model.network, by_hand(MeCAM, torch.float32, 1, clip_norm=1.0, bf16=True), 1e-6)


def test_the_trainer_builds_the_optimizer_with_its_own_groups(tmp_path: Path) -> None:
    """`optimizer_cls_and_kwargs` gives decayed and other parameters a group each."""
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, max_steps=2, weight_decay=0.1, report_to=[], disable_tqdm=True,
        save_strategy="no",
    )  # fmt: skip
    options = {"base_optimizer": torch.optim.AdamW, "lr": 1e-3, "rho": 0.1}
    run = SharpnessAwareTrainer(
        Classifier(), arguments, train_dataset=rows(torch.float64), optimizer_cls_and_kwargs=(SAM, options)
    )
    run.train()
    assert [group["weight_decay"] for group in run.optimizer.param_groups] == [0.1, 0.0]
    assert run.optimizer.optimizer.model is run.model
    assert run.model.network[1].num_batches_tracked == 2


def test_training_again_takes_new_steps(tmp_path: Path) -> None:
    run = trainer(tmp_path, max_steps=2)
    run.train()
    run.train()
    assert run.optimizer.optimizer.param_groups[0]["taken"] == 4


class TestRefused:
    def test_a_trainer_without_the_mixin_is_told_of_it(self, tmp_path: Path) -> None:
        with pytest.raises(TypeError, match=r"mecam\.integrations\.transformers"):
            trainer(tmp_path, kind=transformers.Trainer).train()

    def test_fp16(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
        with pytest.raises(ValueError, match=r"cannot unscale the passes of a step\. Train in bf16"):
            trainer(tmp_path, fp16=True)

    def test_another_optimizer(self, tmp_path: Path) -> None:
        run = trainer(tmp_path)
        run.optimizer = torch.optim.SGD(run.model.parameters())
        with pytest.raises(TypeError, match=r"needs a sharpness-aware optimizer, got SGD\. Pass optimizers="):
            run.train()
