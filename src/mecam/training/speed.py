"""Measure what a run costs on this machine: the time of warm steps and evaluations, the memory of a step."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch

from mecam import ranks
from mecam.data.augment import evaluate_transform
from mecam.data.domains import DomainSet, source_domains
from mecam.data.store import for_sources
from mecam.recipe import Recipe, names_in
from mecam.training.build import build_network
from mecam.training.evaluate import BATCH, BATCH_ON_CPU, batch_on
from mecam.training.features import has_features
from mecam.training.machine import Machine
from mecam.training.nonfinite import BadStep
from mecam.training.result import metrics, watched_splits
from mecam.training.run import Run
from mecam.training.step import train_step

WARM_ON_CPU, WARM = 1, 3  # calls before the clock starts; on a GPU the first ones capture graphs
FEWEST, MOST = 2, 10  # calls on the clock
ENOUGH = 1.0  # seconds
HEAD_STEP = 0.006  # seconds of a step on features that are not computed yet, a guess


@dataclass(frozen=True)
class Cost:
    """Seconds of the parts of a run."""

    step: float
    evaluation: float = 0.0  # one during training
    final: float = 0.0  # the last one, of all images
    start: float = 0.0  # features of a frozen backbone

    def seconds(self, steps: int, evaluate_every: int) -> float:
        """Return the time of a run; without patience and SWAD, which may end it earlier."""
        evaluations = steps // evaluate_every + 1 + (steps % evaluate_every > 0)
        return self.start + (steps + 1) * self.step + evaluations * self.evaluation + self.final


def cost_of(recipe: Recipe, machine: Machine, data: DomainSet) -> Cost:
    """Measure some steps and evaluations of this run."""
    data = for_sources(data, source_domains(data, recipe.target, names_in(recipe.sources)))
    if recipe.trainable == "head" and not has_features(recipe, machine, data):
        everything = sum(len(data.labels(domain)) for domain in range(len(data.domains)))
        return Cost(HEAD_STEP, start=everything / images_per_second(recipe, machine, data))
    run = Run(recipe, machine, data)
    step = _seconds_per_step(run)
    splits = watched_splits(run)
    split = max(splits, key=lambda split: len(splits[split]))
    few = splits[split][: BATCH_ON_CPU if machine.device.type == "cpu" else 2 * BATCH]
    image = _mean_seconds(lambda: metrics(run, {split: few}), machine) / max(1, len(few))
    return Cost(step, image * sum(map(len, splits.values())), image * sum(map(len, run.splits.values())))


def seconds_per_step(recipe: Recipe, machine: Machine, data: DomainSet) -> float:
    """Return the seconds of a training step, without evaluations."""
    return _seconds_per_step(Run(recipe, machine, data))


@torch.inference_mode()
def images_per_second(recipe: Recipe, machine: Machine, data: DomainSet) -> float:
    """Return the images per second of a forward pass of the backbone, images read and prepared."""
    network = build_network(recipe, len(data.classes)).eval().to(machine.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    network.precision = machine.autocast
    few = min(batch_on(machine.device), len(data.labels(0)))

    def forward() -> None:
        images = data.images(0, np.arange(few)).to(machine.device)
        pixels = evaluate_transform(images, network.preprocessing)
        network.pooled(pixels.contiguous(memory_format=torch.channels_last)).cpu()

    return few / _mean_seconds(forward, machine)


def _seconds_per_step(run: Run) -> float:
    """Time steps from the middle of the run, where schedules, annealed penalties and stages are at work."""
    numbers = count(run.recipe.steps // 2)

    def step() -> None:
        with suppress(BadStep):  # the run itself reports it
            loss = train_step(run, min(next(numbers), run.recipe.steps))
            if loss is not None:
                float(loss)  # waits for the device

    return _mean_seconds(step, run.machine)


def _mean_seconds(work: Callable[[], object], machine: Machine) -> float:
    """Return the mean seconds of a call, after warm-up calls."""
    for _ in range(WARM_ON_CPU if machine.device.type == "cpu" else WARM):
        work()
    start = time.perf_counter()
    for calls in range(1, MOST + 1):
        work()
        seconds = time.perf_counter() - start
        if calls >= FEWEST and ranks.from_first(seconds > ENOUGH):
            break
    return float(ranks.from_first(seconds / calls))
