"""Build a store of 200,000 small images, train on it for some minutes, and check that memory stays constant.

Images are written, packed by `mecam data pack` and trained on by `mecam train`, each in its own process. Its memory is
read from /proc every few seconds: `anonymous` is the program's own, `files` the mapped part of the store, which the
system can reclaim. Linux only.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from machine import heading, publish, table

DOMAINS, CLASSES, SIDE = 4, 10, 16
Sample = tuple[float, float, float]  # seconds, anonymous MB, MB of files


def write_images(root: Path, count: int) -> None:
    """Write PNG files into root/<domain>/<class>."""
    random = np.random.default_rng(0)
    each = count // (DOMAINS * CLASSES)
    for domain in range(DOMAINS):
        for label in range(CLASSES):
            folder = root / f"domain{domain}" / f"class{label}"
            folder.mkdir(parents=True)
            pixels = random.integers(0, 256, (each, SIDE, SIDE, 3), dtype=np.uint8)
            for number in range(each):
                Image.fromarray(pixels[number]).save(folder / f"{number:06d}.png", compress_level=1)


def watched(words: list[str], *, seconds: float | None, every: float) -> tuple[list[Sample], float]:
    """Return the command's memory over time and its duration; after `seconds`, send SIGTERM."""
    start, samples = time.monotonic(), []
    process = subprocess.Popen([sys.executable, "-m", "mecam.cli", *words], stdout=subprocess.DEVNULL)
    while process.poll() is None:
        now = time.monotonic() - start
        if seconds is not None and now > seconds:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=120)
            break
        if memory := _memory(process.pid):
            samples.append((now, *memory))
        time.sleep(every)
    if process.returncode not in (0, 128 + signal.SIGTERM):
        raise RuntimeError(f"mecam {' '.join(words)} ended with {process.returncode}")
    return samples, time.monotonic() - start


def _memory(pid: int) -> tuple[float, float] | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssFile"))}
    return (kilobytes["RssAnon"] / 1e3, kilobytes["RssFile"] / 1e3) if len(kilobytes) == 2 else None


def slope(samples: list[Sample]) -> float:
    """Return the growth of the program's own memory in MB per minute, by least squares over the second half."""
    half = samples[len(samples) // 2 :]
    return float(np.polyfit([seconds / 60 for seconds, _, _ in half], [own for _, own, _ in half], 1)[0])


def rows(name: str, samples: list[Sample], shown: int = 8) -> list[list[str]]:
    picked = [samples[round(place)] for place in np.linspace(0, len(samples) - 1, min(shown, len(samples)))]
    return [[name, f"{seconds:.0f}", f"{own:.0f}", f"{files:.0f}"] for seconds, own, files in picked]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=200_000)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between samples")
    parser.add_argument("--most", type=float, default=1.0, help="MB per minute that count as constant")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mecam-soak-") as scratch:
        root = Path(scratch)
        os.environ["MECAM_CACHE"] = str(root / "cache")
        write_images(root / "images", options.images)
        packing, packed = watched(
            ["data", "pack", str(root / "images"), "--out", str(root / "store"), "--quiet"],
            seconds=None,
            every=options.every,
        )
        size = sum(file.stat().st_size for file in (root / "store").iterdir())
        entries = {"image_size": SIDE, "batch": 32, "evaluate_every": 1_000_000, "holdout": 0.02, "lr": 0.001}
        setting = [word for name, value in entries.items() for word in ("--set", f"{name}={value}")]
        words = ["train", "--data", str(root / "store"), "--backbone", "resnet8", "--steps", "100000000", *setting]
        training, _ = watched(
            [*words, "--out", str(root / "runs"), "--quiet"], seconds=60 * options.minutes, every=options.every
        )
    growth = slope(training)
    facts = {
        "images": f"{options.images:,} of {SIDE} x {SIDE}, a store of {size / 1e6:.0f} MB, packed in {packed:.0f} s",
        "training": f"resnet8 by Adam, {DOMAINS} domains of 32 images per step, {options.minutes:g} minutes",
        "own memory over the second half of training": f"{growth:+.2f} MB per minute",
        "verdict": "constant" if abs(growth) <= options.most else "not constant",
    }
    found = [*rows("packing", packing), *rows("training", training)]
    publish(
        [*heading("Soak", "cpu", facts), *table(["phase", "seconds", "anonymous MB", "files MB"], found)], options.out
    )
    return 0 if abs(growth) <= options.most else 1


if __name__ == "__main__":
    sys.exit(main())
