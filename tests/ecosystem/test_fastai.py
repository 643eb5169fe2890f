"""Under fastai's Learner a run is the plain loop; what it cannot do is refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.optim import FSAM, SAM, MeCAM, SharpnessAware
from tests.integrations.loops import BATCHES, SIZE, assert_close, dataset, network, plain, sgd, take_step

pytest.importorskip("fastai", reason="fastai is not installed; make ecosystem runs this")
from fastai.basics import DataLoader, DataLoaders, Learner, OptimWrapper
from fastai.callback.core import Callback, CancelBatchException
from fastai.callback.fp16 import MixedPrecision
from fastai.callback.schedule import fit_one_cycle  # noqa: F401  (a method of Learner, once imported)
from fastai.callback.training import GradientAccumulation, GradientClip

from mecam.integrations.fastai import SharpnessAwareCallback

pytestmark = pytest.mark.filterwarnings("ignore")


works_with = partial(pytest.mark.works_with, "fastai", packages=["fastai"])


def loss_function(logits: Tensor, targets: Tensor) -> Tensor:
    """Return a loss in float32, which fastai's Recorder needs; the gradient stays in float64."""
    return F.cross_entropy(logits, targets).float()


def learner(method: Any = MeCAM, cbs: Any = (), ours: bool = True, **options: Any) -> Any:
    data = DataLoader(dataset(), bs=SIZE, shuffle=False, num_workers=0)
    wrapped = partial(method, base_optimizer=torch.optim.SGD, momentum=0.9, rho=0.2, **options)
    callbacks = [SharpnessAwareCallback(), *cbs] if ours else [*cbs]
    return Learner(
        DataLoaders(data, data, device="cpu"),
        network(),
        loss_func=loss_function,
        opt_func=partial(OptimWrapper, opt=wrapped),
        lr=0.05,
        cbs=callbacks,
    )


def fit(learn: Any, epochs: int = 2, how: str = "fit", **options: Any) -> Any:
    with learn.no_bar(), learn.no_logging():
        getattr(learn, how)(epochs, **options)
    return learn


@pytest.mark.parametrize("method", [SAM, MeCAM, FSAM])
@works_with("a callback: updates equal the plain loop's")
def test_a_fit_is_the_plain_loop(method: type[SharpnessAware]) -> None:
    learn = fit(learner(method))
    assert_close(learn.model, plain(method))
    assert learn.model[1].num_batches_tracked == 2 * BATCHES
    assert learn.opt.opt.param_groups[0]["taken"] == 2 * BATCHES


def test_the_learner_reports_the_loss_at_theta() -> None:
    losses: list[float] = []

    class Watch(Callback):  # type: ignore[misc]
        def after_batch(self) -> None:
            if self.training:
                losses.append(self.loss.item())

    fit(learner(SAM, [Watch()]), 1)
    model = network()
    optimizer = sgd(SAM, model)
    batches = torch.utils.data.DataLoader(dataset(), batch_size=SIZE)
    assert losses == pytest.approx([take_step(model, optimizer, [batch]).item() for batch in batches], abs=1e-6)


class Penalty(Callback):  # type: ignore[misc]
    """Add to the loss, as fastai's RNNRegularizer does."""

    run_valid = False

    def after_loss(self) -> None:
        self.learn.loss_grad = self.loss_grad + sum(p.square().sum() for p in self.model.parameters())


def test_what_other_callbacks_add_to_the_loss_is_in_every_pass() -> None:
    learn = fit(learner(SAM, [Penalty()]), 1)
    model = network()
    optimizer = sgd(SAM, model)
    for x, y in torch.utils.data.DataLoader(dataset(), batch_size=SIZE):

        def closure(x: Any = x, y: Any = y) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y) + sum(p.square().sum() for p in model.parameters())
            loss.backward()
            return loss

        optimizer.step(closure)
    assert_close(learn.model, model)


def test_a_callback_may_leave_out_a_batch() -> None:
    class Skip(Callback):  # type: ignore[misc]
        def after_loss(self) -> None:
            if self.training and self.iter == 1:
                raise CancelBatchException

    learn = fit(learner(SAM, [Skip()]), 1)
    assert learn.opt.opt.param_groups[0]["taken"] == BATCHES - 1


def test_clip_norm_clips_the_combined_gradient_and_a_callback_every_pass() -> None:
    """For SAM both are the same: of its first pass only the direction is used."""
    expected = plain(SAM, clip_norm=0.05)
    assert_close(fit(learner(SAM, clip_norm=0.05)).model, expected)
    assert_close(fit(learner(SAM, [GradientClip(0.05)])).model, expected, 1e-5)


@works_with("fit_one_cycle, save and load")
def test_one_cycle_and_resuming(tmp_path: Path) -> None:
    learn = fit(learner(FSAM), how="fit_one_cycle")
    rates = learn.recorder.lrs
    assert len(set(rates)) == len(rates) == 2 * BATCHES
    learn.path = tmp_path
    learn.save("half", with_opt=True)
    fit(learn, 1)

    resumed = learner(FSAM)
    resumed.path = tmp_path
    resumed.create_opt()
    resumed.load("half", with_opt=True)
    assert_close(fit(resumed, 1).model, learn.model)
    assert resumed.opt.opt.param_groups[0]["taken"] == 3 * BATCHES


@pytest.mark.parametrize("callback", [GradientAccumulation(8), MixedPrecision()], ids=lambda each: each.name)
def test_refused_beside_it(callback: Any) -> None:
    with pytest.raises(ValueError, match=f"cannot be used with {type(callback).__name__}: .*Use a l|Run the model"):
        fit(learner(cbs=[callback]))


def test_refused_with_another_optimizer() -> None:
    learn = learner()
    learn.opt_func = partial(OptimWrapper, opt=torch.optim.SGD)
    with pytest.raises(TypeError, match="needs a sharpness-aware optimizer, got SGD"):
        fit(learn)


def test_a_learner_without_the_callback_is_told_of_it() -> None:
    with pytest.raises(TypeError, match=r"mecam\.integrations\.transformers and mecam\.integrations\.fastai"):
        fit(learner(ours=False))
