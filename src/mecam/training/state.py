"""The state of a run: everything it resumes from, bit for bit."""

from __future__ import annotations

from typing import Any

import torch

from mecam import ranks
from mecam.training.result import complete, facts
from mecam.training.run import Run
from mecam.training.step import on_device


def state_dict(run: Run, step: int) -> dict[str, Any]:
    """Return the state after this step. Every process calls it; the first one's is complete."""
    device = run.machine.device
    own = {
        "augmentation": run.feed.state.noise,
        "draws": run.draws.get_state(),
        "random": torch.get_rng_state(),
        "random_on_device": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }
    return {
        "step": step,
        "fingerprints": run.fingerprints,
        "network": run.trained.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "averaging": run.averaging.state_dict(),
        "method": run.method.state_dict(),
        "method_state": run.method_state,
        "sampler": run.feed.state.sampler,
        "best": run.best.state_dict(),
        # so that the best weights can be used before the end
        "facts": facts(run),
        "frozen": complete(run, {}),
        "ranks": ranks.gather(own),
    }


def load_state_dict(run: Run, state: dict[str, Any]) -> None:
    """Resume from what `state_dict` returned. With another number of processes, random streams start anew."""
    run.trained.load_state_dict(state["network"])
    run.optimizer.load_state_dict(state["optimizer"])
    for group in run.optimizer.param_groups:  # older checkpoints of plain optimizers have their count here
        group["skipped"] += state.get("skipped", 0)
    run.captures.graphs.clear()  # graphs read the tensors that the optimizer had before
    run.averaging.load_state_dict(state["averaging"])
    run.method.load_state_dict(state["method"])
    run.method_state = on_device(state["method_state"], run.machine.device)
    run.best.load_state_dict(state["best"])
    if len(state["ranks"]) != ranks.count():
        run.feed.load(state["sampler"], None)
        return
    own = state["ranks"][ranks.rank()]
    fits = len(own["augmentation"]) == len(run.feed.state.noise)  # a CPU generator's state has another size
    run.feed.load(state["sampler"], own["augmentation"] if fits else None)
    run.draws.set_state(own["draws"])
    torch.set_rng_state(own["random"])
    if own["random_on_device"] is not None and run.machine.device.type == "cuda":
        torch.cuda.set_rng_state(own["random_on_device"], run.machine.device)
