"""Measure the augmentation of a batch: ours, kornia's, and torchvision's per image, on tensors and on Pillow images.

    python benchmarks/augment.py --out benchmarks/results/augment.md
    python benchmarks/augment.py --device cuda --stored 320

All apply random resized crop, flip, color jitter, grayscale and normalization with the protocol's strengths, from uint8
images in memory (Pillow: from decoded images) to a normalized float batch. They are not the same function: kornia draws
one order of the color operations per batch and does not antialias; the others draw one order per image.

Each round measures every contender once. The table has the median over the rounds, and the median ratio to ours within
a round, so a slower machine affects all alike. On a CPU the unit is processor time of one thread, which other programs
hardly affect; on another device it is wall time. kornia is optional: pip install kornia.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

import mecam
from machine import Others, heading, publish, table
from mecam.data.augment import Augmentation
from mecam.preprocessing import IMAGENET, Preprocessing

AREA, ASPECT = (0.7, 1.0), (3 / 4, 4 / 3)
Contender = Callable[[], Tensor]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    torch.set_num_threads(1)
    rows, others = [], Others()
    for size in options.sizes:
        stored = options.stored or {224: 227}.get(size, size)
        images = torch.randint(0, 256, (options.batch, 3, stored, stored), dtype=torch.uint8).to(options.device)
        contenders, missing = gather(images, size)
        times = measure(contenders, options.rounds, options.device)
        ours = times["mecam"]
        for name, seconds in times.items():
            ratio = statistics.median(other / own for other, own in zip(seconds, ours, strict=True))
            cells = [f"{1e3 * statistics.median(seconds):.1f}", f"{1e3 * min(seconds):.1f}", f"{ratio:.2f}"]
            rows.append([f"{stored} to {size}", name, *cells])
        rows += [[f"{stored} to {size}", name, reason, "", ""] for name, reason in missing.items()]
    facts = {
        "batch": f"{options.batch} images; median and minimum of {options.rounds} rounds, after one not counted",
        "other programs": f"used {others.share():.0%} of the processors",
    }
    lines = heading("Augmentation of a batch", options.device, facts)
    header = ["pixels", "contender", "median, ms", "minimum, ms", "of mecam's"]
    publish([*lines, *table(header, rows)], options.out)


def gather(images: Tensor, size: int) -> tuple[dict[str, Contender], dict[str, str]]:
    """Return the contenders that can run here, and the reasons for the others."""
    transform = Augmentation(Preprocessing(size))
    contenders: dict[str, Contender] = {"mecam": lambda: transform(images)}
    missing: dict[str, str] = {}
    if images.is_cuda:
        contenders["mecam, CUDA graph"] = captured(transform, images)
    makers = {"kornia": kornia, "torchvision": torchvision}
    if not images.is_cuda:
        makers["torchvision on Pillow"] = pillow
    for name, make in makers.items():
        try:
            contenders[name] = make(images, size)
        except Exception as error:  # torchvision fails with RuntimeError beside another build of torch
            missing[name] = f"not measured: {type(error).__name__}"
    return contenders, missing


def captured(transform: Augmentation, images: Tensor) -> Contender:
    for _ in range(3):
        transform(images)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = transform(images)

    def replay() -> Tensor:
        graph.replay()
        return out

    return replay


def kornia(images: Tensor, size: int) -> Contender:
    import kornia.augmentation as K

    steps = torch.nn.Sequential(
        K.RandomResizedCrop((size, size), scale=AREA, ratio=ASPECT, cropping_mode="resample"),
        K.RandomHorizontalFlip(p=0.5),
        K.ColorJitter(0.3, 0.3, 0.3, 0.3, p=1.0),
        K.RandomGrayscale(p=0.1),
        K.Normalize(torch.tensor(IMAGENET.mean), torch.tensor(IMAGENET.std)),
    ).to(images.device)

    def run() -> Tensor:
        out: Tensor = steps(images / 255)
        return out

    return run


def torchvision(images: Tensor, size: int) -> Contender:
    return _one_by_one(list(images), size)


def pillow(images: Tensor, size: int) -> Contender:
    from PIL import Image

    return _one_by_one([Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images], size)


def _one_by_one(images: Sequence[object], size: int) -> Contender:
    mecam.repair_torchvision()
    import torchvision.transforms.v2 as T

    steps = T.Compose(
        [
            T.RandomResizedCrop(size, scale=AREA, ratio=ASPECT, antialias=True),
            T.RandomHorizontalFlip(),
            T.ColorJitter(0.3, 0.3, 0.3, 0.3),
            T.RandomGrayscale(0.1),
            T.ToImage(),
            T.ToDtype(torch.float32, scale=True),
            T.Normalize(IMAGENET.mean, IMAGENET.std),
        ]
    )
    return lambda: torch.stack([steps(image) for image in images])


def measure(contenders: dict[str, Contender], rounds: int, device: str) -> dict[str, list[float]]:
    clock = time.process_time if device == "cpu" else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds + 1):
        for name, run in contenders.items():
            synchronize(device)
            start = clock()
            run()
            synchronize(device)
            times[name].append(clock() - start)
    return {name: seconds[1:] for name, seconds in times.items()}


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 32])
    parser.add_argument("--stored", type=int, help="pixels per stored side (default: 227 for 224, else the size)")
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
