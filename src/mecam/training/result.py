"""Evaluate a run: records during training, and at the end the selected weights, their metrics and predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from mecam import ranks
from mecam.averaging import loaded
from mecam.models.lora import merged, remove_adapters
from mecam.splits import Part, Split, summarize
from mecam.training import nonfinite
from mecam.training.evaluate import evaluate
from mecam.training.run import Run

BN_BATCHES = 100  # for the batch-norm statistics of averaged weights


@dataclass(frozen=True)
class Result:
    """The content of the files that are written at the end of a run."""

    weights: dict[str, Tensor]
    facts: dict[str, Any]  # what is needed to use the weights
    metrics: dict[str, Any]
    predictions: dict[str, Tensor]  # columns with an entry per image of the target


def validate(run: Run, step: int) -> dict[str, Any]:
    """Evaluate after this step and return the record. Update selection and averaging.

    A step with outputs that are not finite ends the run, or is not selected with nonfinite=skip.
    """
    unread, run.unread = run.unread, []
    nonfinite.require_none_skipped(unread, run.feed)
    ranks.average(run.trained.buffers())
    candidate = run.averaging.candidate(run.trained) or _schedule_free(run)
    with loaded(run.trained, candidate):
        splits = metrics(run, watched_splits(run))
        weights = run.trained.state_dict() if candidate is None else candidate
        if run.recipe.nonfinite == "raise":
            nonfinite.require_finite_outputs(splits, f"the weights after step {step}")
        accuracy, loss = (summarize(splits, run.recipe.target, metric) for metric in ("accuracy", "loss"))
        decisive = loss.oracle if run.recipe.selection == "oracle" else loss.validation
        if decisive is None or math.isfinite(decisive):
            run.best.offer(step, accuracy.validation, accuracy.oracle, weights)
    seen = math.nan if loss.validation is None else loss.validation
    run.best.stopped |= run.averaging.evaluated(step, seen, run.trained)
    return {"step": step, "splits": splits}


def _schedule_free(run: Run) -> dict[str, Tensor] | None:
    """Return the average that a schedule-free optimizer trains, which is not where it takes gradients; else None."""
    base: Any = run.optimizer.base_optimizer
    if not (hasattr(base, "eval") and hasattr(base, "train")):
        return None
    own = {name: value.clone() for name, value in run.trained.state_dict().items()}
    base.eval()
    average = {name: value.clone() for name, value in run.trained.state_dict().items()}
    base.train()
    run.trained.load_state_dict(own)  # bit for bit: the way back is rounded
    return average


def finish(run: Run) -> Result:
    """Select the weights and evaluate them on every split."""
    averaged = run.averaging.final()
    if averaged is None and run.best.step is None:
        why = "no evaluation had finite outputs, so no step can be selected"
        raise nonfinite.NonFiniteError(f"{why}. {nonfinite.LOWER}")
    remove_adapters(run.trained)
    run.trained.load_state_dict(merged(run.best.weights if averaged is None else averaged))
    if averaged is not None and run.averaging.needs_bn_update:
        _estimate_bn(run)
    logits: dict[Split, Tensor] = {}
    splits = metrics(run, run.splits, logits)
    nonfinite.require_finite_outputs(splits, "the selected weights")
    result = {
        "selected_step": None if averaged is not None else run.best.step,
        "target_accuracy": summarize(splits, run.recipe.target).target,
        "splits": splits,
        "data": run.data.fingerprint,
    }
    if run.recipe.nonfinite == "skip":
        result["skipped_steps"] = int(run.optimizer.skipped)
    return Result(complete(run, run.trained.state_dict()), facts(run), result, _predictions(run, logits))


def complete(run: Run, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of `run.trained` with those of its frozen backbone."""
    prefix = next(name for name, module in run.trained.named_modules(prefix="") if module is run.network)
    inside = f"{prefix}.featurizer." if prefix else "featurizer."
    return {**{f"{inside}{name}": tensor for name, tensor in run.frozen.items()}, **weights}


def watched_splits(run: Run) -> dict[Split, NDArray[np.int64]]:
    """Return the splits to evaluate during training; the others wait for the end.

    These are the sources' held-out parts, the target's training part, and its held-out part for the oracle.
    """

    def needed(split: Split) -> bool:
        if split.domain == run.recipe.target:
            return split.part is Part.TRAINING or run.recipe.selection == "oracle"
        return split.part is Part.HELD_OUT

    return {split: indices for split, indices in run.splits.items() if needed(split)}


def metrics(
    run: Run, splits: Mapping[Split, NDArray[np.int64]], logits: dict[Split, Tensor] | None = None
) -> dict[str, dict[str, object]]:
    """Return the metrics of these splits as records store them; fill `logits`."""
    network, device, forward = run.trained, run.machine.device, run.captures.forward
    preprocessing = run.network.preprocessing
    measured = evaluate(network, run.inputs, splits, preprocessing, device=device, forward=forward, keep=logits)
    return {str(split): asdict(own) for split, own in measured.items()}


def facts(run: Run) -> dict[str, Any]:
    """Return the metadata that loading the weights of this run requires."""
    recipe, network = run.recipe, run.network
    needed = {
        "backbone": recipe.backbone,
        "method": recipe.method,
        "method_settings": recipe.method_settings,
        "domains": len(run.feed.sources),
        "classes": list(run.data.classes),
        **network.preprocessing.to_dict(),
    }
    if network.offline is not None:
        needed["architecture"], needed["architecture_settings"] = network.offline
    return needed


def _predictions(run: Run, logits: Mapping[Split, Tensor]) -> dict[str, Tensor]:
    """Return domain, index, label, class and confidence of each image of the target, or of the held-out parts."""
    parts: list[tuple[Tensor, ...]] = []
    part = Part.HELD_OUT if run.recipe.target is None else Part.TRAINING
    for domain, name in enumerate(run.data.domains):
        split = Split(name, part)
        if run.recipe.target in (None, name) and split in logits:
            index = torch.from_numpy(run.splits[split])
            label = torch.from_numpy(run.data.labels(domain)[run.splits[split]])
            confidence, predicted = logits[split].softmax(1).max(1)
            parts.append((torch.full_like(index, domain), index, label, predicted, confidence))
    names = ("domain", "index", "label", "predicted", "confidence") if parts else ()
    return {name: torch.cat(columns) for name, columns in zip(names, zip(*parts, strict=True), strict=True)}


def _estimate_bn(run: Run) -> None:
    """Estimate batch-norm statistics for averaged weights by the mean over some training batches; none if frozen."""
    layers = [module for module in run.trained.modules() if isinstance(module, _BatchNorm) and module.training]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None
    with torch.no_grad():
        for number in range(BN_BATCHES):
            run.trained(run.feed.next(number).images)
    ranks.average(run.trained.buffers())
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
