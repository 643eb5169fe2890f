"""Eight processes on one folder, on a file system whose locks do nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KILLS = 2


def run_crowd(root: Path) -> None:
    """Train and pack with eight processes at once, kill two of them, and check what is left."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.reliability.several", str(root), str(KILLS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    none = {"failed": 0, "overlaps": 0, "doubled": 0, "differing": 0}
    found = json.loads(ended.stdout)
    assert found["train"] == {"killed": KILLS, "ended": 3, **none}
    assert found["packing"] == {"killed": KILLS, "ended": 1, "left": 0, **none}


@pytest.mark.attack("Several processes")
def test_eight_processes_some_of_them_killed(tmp_path: Path) -> None:
    run_crowd(tmp_path)
