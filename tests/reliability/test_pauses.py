"""A training that is stopped, killed or fails at any call below Python. Every call: make torture."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def shim(folder: Path) -> Path:
    """Compile the shim; skip the test where that is impossible."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("the shim below Python needs Linux and a C compiler, cc")
    library = folder / "faults.so"
    source = Path(__file__).parent / "shim" / "faults.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


def attack(folder: Path, *ways: str) -> dict[str, Any]:
    """Make the attacks of tests.reliability.pauses in this folder."""
    environment = {**os.environ, "LD_PRELOAD": str(shim(folder)), "OMP_NUM_THREADS": "1"}
    command: Sequence[str] = [sys.executable, "-m", "tests.reliability.pauses", str(folder), *ways]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.mark.attack("Several processes")
def test_pauses_longer_than_the_lease_and_faults_at_some_calls(tmp_path: Path) -> None:
    """The 19th call is one in the second evaluation, the 43rd one in a checkpoint."""
    found = attack(tmp_path, "pause:19,43", "pause@43:19", "SIGKILL:43", "ENOSPC:19", "EIO:43")
    assert found["wrong"] == []
    assert found["made"] == 6
