"""Settings for the whole suite: one thread a process, and a torchvision that can be imported.

torchvision wheels built for CUDA do not import beside a CPU build of torch, for want of two operators' schemas; timm
and lightning then fail with them. Declaring the schemas is all they need.
"""

import contextlib
import importlib.util
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

TORCHVISION_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


def declare_torchvision_operators() -> None:
    """Unless torchvision's own library fits this torch: to define what it then defines again aborts the process."""
    spec = importlib.util.find_spec("torchvision")
    for folder in (spec and spec.submodule_search_locations) or ():
        for library in Path(folder).glob("_C*.so"):
            with contextlib.suppress(OSError):
                torch.ops.load_library(library)
    for name, schema in TORCHVISION_SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", schema)


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
