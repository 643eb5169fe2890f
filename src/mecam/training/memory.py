"""Keep the memory of freed tensors for the next step of a run on a CPU.

By default glibc returns freed blocks above 32 MiB to the system, which clears their pages again for the next step.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

# the numbers of malloc.h
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
KEPT = 2**31 - 1  # bytes; glibc takes an int. Of the free end of the heap, more than that is returned to the system
PAD = 64 << 20  # bytes that the heap grows by at once


@cache
def keep_freed_memory() -> bool:
    """Let this process keep freed memory for its next allocations. Return whether it does.

    Other C libraries than glibc, and processes with MALLOC_ settings in their environment, are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    settings = {MMAP_THRESHOLD: KEPT, TRIM_THRESHOLD: KEPT, TOP_PAD: PAD}
    return all(mallopt(name, value) == 1 for name, value in settings.items())
