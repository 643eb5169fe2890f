"""The numerically delicate tests under other instruction sets. `make portability` runs the whole suite under more."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
DELICATE = (
    "tests/methods",
    "tests/virtual/test_mixstyle.py",
    "tests/virtual/test_efdmix.py",
    "tests/models/test_folding.py",
    "tests/data/test_augment.py",
    "tests/examples/test_paper_theory.py",
    *(f"tests/analysis/test_{name}.py" for name in ("curvature", "spectrum")),
    *(f"tests/optim/test_{name}.py" for name in ("mecam", "methods", "vector")),
)
SLOW = "tests/methods/test_every_method.py"
SETTINGS = {
    "default": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
}
ABOVE = {"default": ("avx2", "avx512"), "avx2": ("avx512",)}  # processors whose kernels can be limited to these


@pytest.mark.parametrize("capability", SETTINGS)
def test_delicate_tests_pass_under_another_instruction_set(capability: str) -> None:
    own = torch.backends.cpu.get_cpu_capability().lower()
    if own not in ABOVE[capability]:
        pytest.skip(f"torch has {own} kernels on this processor: not more than {capability}")
    checked = f"""
import sys
import pytest, torch
assert torch.backends.cpu.get_cpu_capability().lower() == {capability!r}
sys.exit(pytest.main(sys.argv[1:]))
"""
    words = ["--quiet", "-p", "no:cacheprovider", "--deselect", SLOW, *DELICATE]
    command = [sys.executable, "-c", checked, *words]
    environment = {**os.environ, **SETTINGS[capability]}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
