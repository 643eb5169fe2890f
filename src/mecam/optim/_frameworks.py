"""Detect what Accelerate and Lightning do around a step."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any


def skips_backward(closure: Any) -> bool:
    """Return whether this is Lightning's closure without a backward (the batch-norm epoch of its SWA)."""
    inner = closure.args if isinstance(closure, partial) else ()
    return any(getattr(each, "_backward_fn", closure) is None for each in inner)


def refuse_accumulate() -> None:
    """Refuse Accelerate's accumulate, which skips step() for all micro-batches but the last."""
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
