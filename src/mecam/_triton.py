"""Import modules of Triton kernels where Triton works."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any


@cache
def kernels(module: str) -> Any:
    """Return the module, or None where Triton is missing or broken: torch operations are used there."""
    try:
        return importlib.import_module(module)
    except Exception:
        return None
