"""Check the options that all sharpness-aware optimizers share."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from mecam.hyperparameters import Choice, Hyperparameter, check_switch

Nonfinite = Literal["raise", "skip", "ignore"]
CLIP_NORM = Hyperparameter("largest norm of the combined gradient", open_low=True)


def radius(default: float) -> Hyperparameter:
    """Return rho with this default."""
    return Hyperparameter("radius of the perturbation", default=default, search=Choice((0.01, 0.02, 0.05, 0.1)))


def check_options(
    name: str, model: nn.Module | None, clip_norm: float | None, nonfinite: Nonfinite, **switches: bool
) -> None:
    """Check the options of the optimizer called `name`."""
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


def outside() -> int:
    """Return the `stacklevel` at which a warning points to the first line outside this package and torch."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("mecam.optim.", "torch.")):
        level, frame = level + 1, frame.f_back
    return level


def is_capturing() -> bool:
    """Return whether a CUDA graph is being captured."""
    started: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return started and torch.cuda.is_current_stream_capturing()


def in_process_group() -> bool:
    """Return whether torch.distributed is in use."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def is_ddp(model: nn.Module | None) -> bool:
    return hasattr(model, "no_sync") and hasattr(model, "process_group")


def warn_of_half_precision(name: str, parameters: Sequence[Tensor]) -> None:
    """Warn that a perturbation moves few weights with 8 or 11 bits of precision."""
    half = [p for p in parameters if p.dtype in (torch.bfloat16, torch.float16)]
    if half:
        warnings.warn(
            f"{name}: {len(half)} of {len(parameters)} parameters are {half[0].dtype}. A perturbation is below the "
            "precision of most weights, and leaves them where they are. Keep the weights in float32 and compute under "
            "torch.autocast, or pass stochastic_rounding=True",
            stacklevel=outside(),
        )
