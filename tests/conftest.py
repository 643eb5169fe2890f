"""Settings for the whole suite: one thread a process, and a torchvision that can be imported.

torchvision wheels built for CUDA do not import beside a CPU build of torch, for want of two operators' schemas; timm
and lightning then fail with them. Declaring the schemas is all they need.
"""

import os
import secrets
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
# Ray reads these once, when it is first imported, whichever test does that; without a token of ours it would put one
# into the home folder, for good
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    """What a test compiles or exports is its own: optimizers without model= ask torch whether anything was compiled."""
    yield
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        dynamo.counters.clear()
