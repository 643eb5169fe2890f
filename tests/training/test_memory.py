"""Freed memory on a CPU is kept for the next step."""

import ctypes
import subprocess
import sys

import pytest

CHILD = """
import resource, sys
import torch
from mecam.training.memory import keep_freed_memory

torch.set_num_threads(1)
if sys.argv[1] == "keep":
    assert keep_freed_memory()
torch.ones(16 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(16 << 20)  # 64 MiB
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_large_blocks_are_used_again() -> None:
    def page_faults(way: str) -> int:
        command = [sys.executable, "-c", CHILD, way]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert page_faults("keep") < page_faults("plain") / 10
