"""Measure the cost of loading: training steps on new batches against steps on one prepared batch.

    python benchmarks/end_to_end.py
    python benchmarks/end_to_end.py --device cuda --backbone resnet50 --image-size 224 --stored 227 --images 9991

All steps are those of the training loop, on the same network, in turns: a burst on one batch (bare), a burst with the
feed (whole: sampling, loading, augmentation), and with --evaluate another such burst that ends in an evaluation. Shares
are computed within a round, relative to the burst's rate. The images are noise of the given size and number; --streamed
keeps them off the GPU.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from machine import heading, parse, publish, table
from mecam.methods import Batch
from mecam.recipe import Recipe
from mecam.training import resident
from mecam.training.feed import Feed
from mecam.training.machine import find_machine
from mecam.training.result import validate
from mecam.training.run import Run
from mecam.training.step import train_step

DOMAINS = ("a", "b", "c", "d")
WARM_UP = 5


class Noise:
    """A data set of noise: four domains of equal size, seven classes."""

    name = "noise"
    domains = DOMAINS
    classes = tuple(str(label) for label in range(7))
    fingerprint = "noise"

    def __init__(self, images: int, side: int) -> None:
        self.size = (side, side)
        generator = torch.Generator().manual_seed(0)
        shape = (images // len(DOMAINS), 3, side, side)
        self.pixels = [torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator) for _ in DOMAINS]

    def labels(self, domain: int) -> NDArray[np.int64]:
        return np.arange(len(self.pixels[domain])) % len(self.classes)

    def aspects(self, domain: int) -> NDArray[np.float32]:
        return np.ones(len(self.pixels[domain]), dtype=np.float32)

    def sample_name(self, domain: int, index: int) -> str:
        return f"{self.domains[domain]}/{index}"

    def images(self, domain: int, indices: Sequence[int] | NDArray[np.integer]) -> Tensor:
        return self.pixels[domain][torch.as_tensor(np.asarray(indices))]


class Still:
    """A feed that always returns the same images."""

    def __init__(self, feed: Feed) -> None:
        self.batch, self.state = feed.next(0), feed.state

    def next(self, step: int) -> Batch:
        return replace(self.batch, step=step)


def main() -> None:
    options = parse(
        __doc__,
        device="cpu",
        optimizer="mecam",
        backbone="resnet8",
        image_size=32,
        stored=32,
        images=2240,
        batch=32,
        freeze_bn=False,
        evaluate=False,
        streamed=False,
        rounds=9,
        burst=10,
    )
    if options.streamed:
        resident.SHARE = 0.0
    recipe = Recipe(
        data="noise",
        target="a",
        optimizer=options.optimizer,
        backbone=options.backbone,
        image_size=options.image_size,
        batch=options.batch,
        lr=1e-6,
        freeze_bn=options.freeze_bn or None,
    )
    run = Run(recipe, find_machine(options.device), Noise(options.images, options.stored))
    whole, still = run.feed, Still(run.feed)
    for _ in range(WARM_UP):
        train_step(run, 0)
    kinds = {"bare": (still, False), "whole": (whole, False), "evaluated": (whole, True)}
    if not options.evaluate:
        kinds.pop("evaluated")
    else:
        validate(run, 0)  # the first evaluation compiles and captures
    rounds = [
        {kind: burst(run, feed, options.burst, evaluated=evaluated) for kind, (feed, evaluated) in kinds.items()}
        for _ in range(options.rounds)
    ]
    images = options.batch * (len(DOMAINS) - 1)
    rates = {kind: images / statistics.median(taken[kind] for taken in rounds) for kind in kinds}
    row, header = [options.optimizer], ["optimizer"]
    for kind, rate in rates.items():
        header.append(f"{kind}, images/s")
        row.append(f"{rate:.0f}")
    for slower, faster in (("whole", "bare"), ("evaluated", "whole"), ("evaluated", "bare")):
        if slower in kinds:
            header.append(f"{slower} of {faster}: median, quartiles")
            row.append(share([taken[faster] / taken[slower] for taken in rounds]))
    setting = (
        f"{options.backbone}, {images} images of {options.image_size} px per step out of {options.images} stored at "
        f"{options.stored} px, {'streamed' if whole.resident is None else 'on the device'}, {run.machine.precision}"
    )
    facts = {"setting": setting, "repeats": f"{options.rounds} rounds of {options.burst} steps each way"}
    publish([*heading("Loading beside the step", options.device, facts), *table(header, [row])], options.out)


def share(ratios: Sequence[float]) -> str:
    ordered = sorted(ratios)
    quarter = len(ordered) // 4
    low, high = 100 * ordered[quarter], 100 * ordered[-1 - quarter]
    return f"{100 * statistics.median(ordered):.1f} %, {low:.1f} to {high:.1f}"


def burst(run: Run, feed: Feed | Still, steps: int, *, evaluated: bool = False) -> float:
    """Return seconds per step, with or without an evaluation at the end."""
    run.feed = feed  # type: ignore[assignment]
    synchronize(run)
    start = time.perf_counter()
    for step in range(steps):
        train_step(run, step)
    if evaluated:
        validate(run, steps)
    synchronize(run)
    return (time.perf_counter() - start) / steps


def synchronize(run: Run) -> None:
    if run.machine.device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
