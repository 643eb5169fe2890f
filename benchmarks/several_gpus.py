"""Compute what several GPUs would give, from the measured time of a pass and the bandwidth between GPUs on paper.

    python benchmarks/several_gpus.py --out benchmarks/results/several_gpus.md

Nothing is measured here. A pass is one third forward, and its backward fills buckets of 25 MiB at a constant rate. Each
bucket is exchanged by a ring, 2 (n - 1) / n of its bytes over each link, one after the other. Gradients are copied
into the bucket and back.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from machine import publish, table

NETWORKS = {"ResNet-50": (102e6, 12.6e-3), "ViT-B/16": (344e6, 30.6e-3)}  # bytes of gradients, seconds of a pass
LINKS = {"NVLink": 450e9, "PCIe 5.0 x16": 64e9, "PCIe 4.0 x16": 32e9}  # bytes per second and direction, on paper
MEMORY = 4.3e12  # bytes per second, reached by a copy on an H200
BUCKET = 25 * 2**20
GPUS = (2, 4, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [
        [f"{network}, {link}, {gpus} GPUs", *cells(*NETWORKS[network], LINKS[link], gpus)]
        for network in NETWORKS
        for link in LINKS
        for gpus in GPUS
    ]
    columns = [
        "case",
        "exchange, ms",
        "after: ms per pass",
        "images, times",
        "overlapped: ms per pass",
        "images, times",
    ]
    publish([*HEAD, *table(columns, rows), *NOTES], options.out)


def cells(size: float, alone: float, bandwidth: float, gpus: int) -> list[str]:
    exchange = 2 * (gpus - 1) / gpus * size / bandwidth
    copies = 4 * size / MEMORY
    after = alone + exchange + copies
    together = overlapped(size, alone, exchange) + copies
    shown = [f"{1e3 * exchange:.2f}"]
    for seconds in (after, together):
        shown += [f"{1e3 * seconds:.1f}", f"{gpus * alone / seconds:.2f}"]
    return shown


def overlapped(size: float, alone: float, exchange: float) -> float:
    """Return the seconds of a pass in which each bucket is sent when the backward has filled it."""
    end, sent = 0.0, 0.0
    while sent < size:
        bucket = min(BUCKET, size - sent)
        sent += bucket
        filled = alone * (1 + 2 * sent / size) / 3
        end = max(end, filled) + exchange * bucket / size
    return end


HEAD = """\
# Several GPUs, computed

    python benchmarks/several_gpus.py --out benchmarks/results/several_gpus.md

**Computed, not measured**: no machine with several GPUs was at hand. Every GPU has 96 images of 224 px in bf16.

- a pass: 12.6 ms for ResNet-50 and 30.6 ms for ViT-B/16, measured on one H200, captured and folded or compiled
- gradients: float32, 102 MB and 344 MB
- bandwidth per direction, as on paper: NVLink 450 GB/s, PCIe 5.0 x16 64 GB/s, PCIe 4.0 x16 32 GB/s
- exchange: a ring, 2 (n - 1) / n of the bytes per GPU and pass; buckets of 25 MiB; no latency
- backward: two thirds of a pass, filling buckets at a constant rate; copies into buckets and back at 4.3 TB/s
- images, times: images per second, relative to one GPU""".splitlines()

NOTES = """
"After" is one exchange at the end of the backward. "Overlapped" is what `mecam train` does under torchrun for methods
whose pass is one backward (`training/exchange.py`). Gradient surgery, passes by domain and accumulated passes exchange
after it.

A step of SAM has two such passes and one of MeCAM three, so the factors hold for them too.

Steps are captured with the exchange inside. That was run with one process, whose exchange only copies (H200, NCCL,
commit 25c6377): MeCAM's step on ResNet-50 took 39.6 instead of 37.4 ms, and twelve losses were equal bit for bit.
""".splitlines()


if __name__ == "__main__":
    main()
