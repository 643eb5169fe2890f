"""Freed memory on a CPU: kept for the next step, up to a bound."""

import ctypes
import subprocess
import sys

import pytest

CHILD = """
import resource, sys
from pathlib import Path
import torch
from mecam.training.memory import keep_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

torch.set_num_threads(1)
if sys.argv[1] == "keep":
    assert keep_freed_memory()
torch.ones(16 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(16 << 20)  # 64 MiB
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
many = [torch.ones(16 << 20) for _ in range(36)]
full = resident()
del many
print(faults, full - resident())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_large_blocks_are_kept_and_memory_above_2_gib_is_returned() -> None:
    def measure(way: str) -> tuple[int, int]:
        done = subprocess.run([sys.executable, "-c", CHILD, way], capture_output=True, text=True, check=True)
        faults, freed = map(int, done.stdout.split())
        return faults, freed

    (plain, _), (kept, freed) = measure("plain"), measure("keep")
    assert kept < plain / 10
    assert freed > 1 << 30
