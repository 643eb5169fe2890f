"""Step a sharpness-aware optimizer in the Trainer of Transformers."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mecam.optim import SharpnessAware

Base: Any = Any if TYPE_CHECKING else object  # a Trainer, which a user's class names after the mixin


class SharpnessAwareMixin(Base):  # type: ignore[misc]
    """Let a Trainer of Transformers step a sharpness-aware optimizer. Name it before the Trainer.

    Every pass of a step runs all micro-batches of the accumulation window. The Trainer's model becomes the optimizer's
    `model`, and `max_grad_norm` its `clip_norm`, unless these are set. The logged loss is the one at theta; the logged
    grad_norm is that of the combined gradient, after clipping. A window that the data set ends before is dropped.

    Example:
        >>> class SharpnessAwareTrainer(SharpnessAwareMixin, Trainer): ...
        >>> optimizer = SAM(model.parameters(), torch.optim.AdamW, lr=5e-5)
        >>> trainer = SharpnessAwareTrainer(model, args, train_dataset=data, optimizers=(optimizer, None))
    """

    _window: list[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.accelerator.mixed_precision == "fp16":
            raise ValueError(
                "fp16: the Trainer's GradScaler cannot unscale the passes of a step. Train in bf16 (bf16=True)"
            )
        if self.is_deepspeed_enabled:
            raise ValueError("DeepSpeed takes its steps without a closure. Use DDP or FSDP2")

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        created = super().create_optimizer(*args, **kwargs)
        optimizer = getattr(created, "optimizer", created)  # Accelerate's wrapper, if train() was called before
        if not isinstance(optimizer, SharpnessAware):
            raise TypeError(
                f"{type(self).__name__} needs a sharpness-aware optimizer, got {type(optimizer).__name__}. Pass "
                "optimizers=(SAM(model.parameters(), torch.optim.AdamW, lr=...), None)"
            )
        if optimizer.model is None:
            optimizer.model = self.model
        if optimizer.clip_norm is None and self.args.max_grad_norm > 0:
            optimizer.clip_norm = self.args.max_grad_norm
        return created

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        self._window, count = super().get_batch_samples(*args, **kwargs)
        return self._window, count

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:  # noqa: ARG002
        if not self.accelerator.sync_gradients:
            return torch.zeros((), device=self.args.device)  # the window's last micro-batch runs all of them
        run = super().training_step

        def closure() -> Tensor:
            model.zero_grad()
            *others, last = self._window
            with _without_all_reduce(model):
                losses = [run(model, each, num_items_in_batch) for each in others]
            return torch.stack([*losses, run(model, last, num_items_in_batch)]).sum()

        loss: Tensor = self.optimizer.optimizer.step(closure)
        # the Trainer calls step() next; Accelerate's wrapper ignores that until the Trainer sets this anew
        self.accelerator.gradient_state._set_sync_gradients(False)
        return loss


def _without_all_reduce(model: nn.Module) -> AbstractContextManager[Any]:
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()


__all__ = ["SharpnessAwareMixin"]
