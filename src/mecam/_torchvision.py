"""Make a torchvision that was built for another torch importable.

timm and Lightning import torchvision. Its compiled library loads only beside the torch it was built for (a wheel for
CUDA does not load beside a torch for CPUs). Without the library, the import fails on two operators that have no schema:
"operator torchvision::nms does not exist". With the schemas declared, the import works; calling the operators does not.
"""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
OPERATORS = ("nms", "qnms")  # registered by torchvision even without its library


def repair_torchvision() -> bool:
    """Declare torchvision's operators if its library does not load; call this before importing timm or Lightning.

    No-op if torchvision is not installed, fits this torch, or is imported already.

    Returns:
        True if torchvision runs on declared operators, now or since an earlier call.
    """
    import torch

    if "torchvision" not in sys.modules:
        libraries = _libraries()
        # a library that loads defines the operators itself; declaring them first would abort the process
        if libraries is not None and not _is_declared("nms") and not any(map(_loads, libraries)):
            for name in OPERATORS:
                if not _is_declared(name):
                    torch.library.define(f"torchvision::{name}", SCHEMA)
    # an operator of torchvision's own library has a kernel for CPUs; a declared one has none
    return _is_declared("nms") and not torch._C._dispatch_has_kernel_for_dispatch_key("torchvision::nms", "CPU")


def _libraries() -> list[Path] | None:
    """Return the compiled library of the installed torchvision; None without torchvision."""
    spec = find_spec("torchvision")
    if spec is None:
        return None
    folders = spec.submodule_search_locations or ()
    files = [Path(folder) / f"_C{suffix}" for folder in folders for suffix in EXTENSION_SUFFIXES]
    return [file for file in files if file.is_file()]


def _loads(library: Path) -> bool:
    import torch

    try:
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    except OSError:
        return False
    return True


def _is_declared(name: str) -> bool:
    import torch

    return hasattr(torch.ops.torchvision, name)


__all__ = ["repair_torchvision"]
