"""Import modules of Triton kernels where Triton works."""

from __future__ import annotations

import importlib
import warnings
from functools import cache
from typing import Any


@cache
def kernels(module: str) -> Any:
    """Return the module, or None where torch operations are used: Triton is missing, or broken, which warns."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # a Triton that does not fit the driver or torch raises errors of any type
        if not (isinstance(error, ModuleNotFoundError) and error.name == "triton"):
            warnings.warn(
                f"{module}: Triton does not work ({type(error).__name__}: {error}); slower torch operations are used",
                stacklevel=2,
            )
        return None
