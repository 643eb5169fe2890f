"""Settings for the whole suite: one thread a process, and a torchvision that can be imported.

torchvision wheels built for CUDA do not import beside a CPU build of torch, for want of two operators' schemas; timm
and lightning then fail with them. Declaring the schemas is all they need.
"""

import sys
from collections.abc import Iterator

import pytest
import torch

TORCHVISION_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


def declare_torchvision_operators() -> None:
    for name, schema in TORCHVISION_SCHEMAS.items():
        try:
            torch.library.define(f"torchvision::{name}", schema)
        except RuntimeError:  # a torchvision that brought them itself
            return


declare_torchvision_operators()
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    """What a test compiles or exports is its own: optimizers without model= ask torch whether anything was compiled."""
    yield
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        dynamo.counters.clear()
