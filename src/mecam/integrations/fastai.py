"""Step a sharpness-aware optimizer in the Learner of fastai."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mecam.optim import SharpnessAware

try:
    from fastai.callback.core import Callback, CancelBatchException
    from fastai.callback.fp16 import MixedPrecision, NonNativeMixedPrecision
    from fastai.callback.training import GradientAccumulation
except ImportError as error:
    raise ImportError(f"mecam.integrations.fastai needs fastai (pip install fastai): {error}") from error

REFUSED = {
    GradientAccumulation: "it leaves out the step, and with it the passes. Use a larger batch",
    MixedPrecision: "its autocast ends with the first pass. Run the model's forward under torch.autocast in bf16",
    NonNativeMixedPrecision: "it steps a copy of the weights. Run the model's forward under torch.autocast in bf16",
}


class SharpnessAwareCallback(Callback):  # type: ignore[misc]
    """Let a Learner of fastai step a sharpness-aware optimizer.

    Every pass runs the forward, the loss and the backward with the events of other callbacks up to `before_step`:
    GradientClip clips every pass, `clip_norm` of the optimizer the combined gradient. Predictions and losses that the
    Learner reports are those at theta. The Learner's model becomes the optimizer's `model`, unless one is set.

    Example:
        >>> sam = partial(OptimWrapper, opt=partial(SAM, base_optimizer=torch.optim.SGD, momentum=0.9))
        >>> learner = Learner(dls, model, loss_func=loss, opt_func=sam, cbs=SharpnessAwareCallback())
    """

    order = 1000  # after every callback that changes the batch
    run_valid = False

    def before_fit(self) -> None:
        optimizer = getattr(self.opt, "opt", self.opt)
        if not isinstance(optimizer, SharpnessAware):
            raise TypeError(
                f"SharpnessAwareCallback needs a sharpness-aware optimizer, got {type(optimizer).__name__}. Pass "
                "opt_func=partial(OptimWrapper, opt=partial(SAM, base_optimizer=torch.optim.SGD))"
            )
        for kind, reason in REFUSED.items():
            if any(isinstance(each, kind) for each in self.learn.cbs):
                raise ValueError(f"SharpnessAwareCallback cannot be used with {kind.__name__}: {reason}")
        if optimizer.model is None:
            optimizer.model = self.learn.model

    def before_batch(self) -> None:
        learn = self.learn
        if not len(learn.yb):
            return
        at_theta: dict[str, Any] = {}

        def closure() -> Tensor:
            learn.opt.zero_grad()
            learn.pred = learn.model(*learn.xb)
            learn("after_pred")
            learn.loss_grad = learn.loss_func(learn.pred, *learn.yb)
            learn.loss = learn.loss_grad.clone()
            learn("after_loss")
            learn("before_backward")
            learn.loss_grad.backward()
            learn("after_backward")
            learn("before_step")
            for name in ("pred", "loss", "loss_grad"):
                at_theta.setdefault(name, getattr(learn, name))
            loss: Tensor = learn.loss_grad
            return loss

        learn.opt.opt.step(closure)
        for name, value in at_theta.items():
            setattr(learn, name, value)
        learn("after_step")
        learn.opt.zero_grad()
        raise CancelBatchException  # the Learner's own forward, backward and step


__all__ = ["SharpnessAwareCallback"]
