"""Compute how close measured passes come to the arithmetic and the memory of an H200.

    python benchmarks/roofline.py

FLOPs and bytes of a pass (forward and backward) are counted on the meta device, without running it: FLOPs by
torch.utils.flop_counter, bytes as the inputs and outputs of every operation but views, in bf16. Of a convolution's
backward the gradient of the output counts twice, since two kernels read it. Left out are sums for the bias and padding,
which the folded kernels take along, and copies to channels last. What a transformer moves depends on the kernel of its
attention and is not counted.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from machine import publish, table
from mecam.models import create, fold_frozen

MEASURED = {  # ms of an ERM step on an H200, which is one pass: benchmarks/results/gpu.md, gpu_compile.md
    "resnet50": 12.1,
    "lite0": 8.9,
    "timm/vit_base_patch16_224": 30.7,
    "timm/convnext_tiny": 24.5,
}
BYTES, FLOPS = 4.3e12, 790e12  # per second, reached by a copy and by a bf16 product of matrices on an H200
IMAGES = 96
NOT_MOVED = tuple(f"aten::{name}" for name in ("sum", "constant_pad_nd", "clone", "empty", "new_empty", "detach"))
HEADER = ["network", "TFLOP", "GB", "floor, ms", "measured, ms", "of 790 TFLOP/s", "of 4.3 TB/s", "images/s"]


class Traffic(TorchDispatchMode):
    """Count the bytes that operations read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        returns = func._schema.returns
        view = any(each.alias_info is not None and not each.alias_info.is_write for each in returns)
        if not view and not func.name().startswith(NOT_MOVED):
            self.bytes += sum(leaf.nbytes for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor))
            if func.name() == "aten::convolution_backward":
                self.bytes += args[0].nbytes
        return result


def back_of_convolution(dz: Any, _: Any, weight: Any, *settings: Any, **__: Any) -> int:
    """Return FLOPs. torch's own count ignores groups."""
    wanted = settings[-1]
    return 2 * math.prod(dz) * math.prod(weight[1:]) * (wanted[0] + wanted[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(MEASURED), default=list(MEASURED))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    publish(table(HEADER, [[name, *cells(name)] for name in options.networks]), options.out)


def cells(name: str) -> list[str]:
    flops, moved = count(name)
    seconds = MEASURED[name] / 1000
    counted = "vit" not in name
    floor = max(flops / FLOPS, moved / BYTES if counted else 0.0)
    return [
        f"{flops / 1e12:.2f}",
        f"{moved / 1e9:.1f}" if counted else "-",
        f"{1000 * floor:.1f}",
        f"{MEASURED[name]:.1f}",
        f"{100 * flops / FLOPS / seconds:.0f} %",
        f"{100 * moved / BYTES / seconds:.0f} %" if counted else "-",
        f"{IMAGES / seconds:,.0f}",
    ]


def count(name: str) -> tuple[float, float]:
    """Return FLOPs and bytes of a pass."""
    network = create(name, classes=7, pretrained=False, freeze_bn=True).train()
    network = network.to("meta", torch.bfloat16)
    fold_frozen(network)
    images = torch.empty(IMAGES, 3, 224, 224, device="meta", dtype=torch.bfloat16)
    labels = torch.empty(IMAGES, device="meta", dtype=torch.int64)
    counts = {torch.ops.aten.convolution_backward: back_of_convolution}
    with FlopCounterMode(display=False, custom_mapping=counts) as flops, Traffic() as traffic:
        cross_entropy(network(images.contiguous(memory_format=torch.channels_last)), labels).backward()
    return flops.get_total_flops(), traffic.bytes


if __name__ == "__main__":
    main()
