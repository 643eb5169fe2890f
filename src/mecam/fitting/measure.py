"""Measure how fast this machine runs a network."""

from __future__ import annotations

import time

import numpy as np
import torch

from mecam.data.augment import evaluate_transform
from mecam.data.domains import DomainSet
from mecam.recipe import Recipe
from mecam.training.build import build_network
from mecam.training.evaluate import BATCH, BATCH_ON_CPU
from mecam.training.machine import Machine
from mecam.training.run import Run
from mecam.training.step import train_step

TRIES = 3
ENOUGH = 3.0  # seconds


@torch.inference_mode()
def images_per_second(recipe: Recipe, machine: Machine, data: DomainSet) -> float:
    """Return the images per second of a forward pass, images read and prepared, in the last of up to three batches."""
    network = build_network(recipe, len(data.classes)).eval().to(machine.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    network.precision = machine.autocast
    count = min(BATCH_ON_CPU if machine.device.type == "cpu" else BATCH, len(data.labels(0)))
    start = time.perf_counter()
    for _ in range(TRIES):
        begun = time.perf_counter()
        images = data.images(0, np.arange(count)).to(machine.device)
        pixels = evaluate_transform(images, network.preprocessing)
        network.pooled(pixels.contiguous(memory_format=torch.channels_last)).cpu()
        taken = time.perf_counter() - begun
        if time.perf_counter() - start > ENOUGH:
            break
    return count / taken


def seconds_per_step(recipe: Recipe, machine: Machine, data: DomainSet) -> float:
    """Return the seconds of a training step, the last of up to three."""
    run, start = Run(recipe, machine, data), time.perf_counter()
    for step in range(TRIES):
        begun = time.perf_counter()
        if (loss := train_step(run, step)) is not None:
            float(loss)  # waits for the device
        taken = time.perf_counter() - begun
        if time.perf_counter() - start > ENOUGH and step > 0:
            break
    return taken
