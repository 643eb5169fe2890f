"""The options that every sharpness-aware optimizer takes, checked."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from mecam.optim.hyperparameters import Hyperparameter, check_switch

Nonfinite = Literal["raise", "skip", "ignore"]
CLIP_NORM = Hyperparameter("largest norm of the combined gradient", open_low=True)


def check_options(
    name: str, model: nn.Module | None, clip_norm: float | None, nonfinite: Nonfinite, **switches: bool
) -> None:
    """Refuse what an option does not allow; `name` is the optimizer's."""
    if nonfinite not in ("raise", "skip", "ignore"):
        raise ValueError(f"{name}: nonfinite={nonfinite!r} is not allowed; it must be 'raise', 'skip' or 'ignore'")
    for switch, value in switches.items():
        check_switch(name, switch, value)
    if clip_norm is not None:
        CLIP_NORM.check(name, "clip_norm", clip_norm)
    if model is not None and not isinstance(model, nn.Module):
        raise TypeError(f"{name}: model is a {type(model).__name__}; it must be the torch.nn.Module that is trained")
    if switches["local_perturbation"]:
        if not is_ddp(model):
            raise ValueError(f"{name}: local_perturbation needs model= to be the DistributedDataParallel module")
        if cast("Any", model).static_graph:
            raise ValueError(f"{name}: local_perturbation needs DDP's no_sync, which fails with static_graph=True")


def is_ddp(model: nn.Module | None) -> bool:
    return hasattr(model, "no_sync") and hasattr(model, "process_group")


def warn_of_half_precision(name: str, parameters: Sequence[Tensor]) -> None:
    """A perturbation is small beside the weights: where these are rounded to 8 or 11 bits, most of it is lost."""
    half = [p for p in parameters if p.dtype in (torch.bfloat16, torch.float16)]
    if half:
        warnings.warn(
            f"{name}: {len(half)} of {len(parameters)} parameters are {half[0].dtype}. Most of a perturbation is below "
            "their precision and is rounded away. Keep the weights in float32 and compute under torch.autocast",
            stacklevel=4,
        )


def refuse_accumulate() -> None:
    """Accelerate's accumulate skips step(), and with it the closure, for all micro-batches but the last."""
    accelerate = sys.modules.get("accelerate.state")
    settings = {} if accelerate is None else accelerate.GradientState._shared_state.get("plugin_kwargs", {})
    if settings.get("num_steps", 1) > 1:
        raise RuntimeError(
            f"Accelerate's accumulate (gradient_accumulation_steps={settings['num_steps']}) skips step(), and with it "
            "the closure, for all micro-batches but the last: their gradients would be missing. Create the "
            "Accelerator without gradient_accumulation_steps, and loop over the micro-batches inside the closure:\n\n"
            "    def closure():\n"
            "        optimizer.zero_grad()\n"
            "        losses = []\n"
            "        for inputs, targets in micro_batches:  # drawn before the step\n"
            "            loss = loss_function(model(inputs), targets) / len(micro_batches)\n"
            "            accelerator.backward(loss)\n"
            "            losses.append(loss.detach())\n"
            "        return sum(losses)"
        )
