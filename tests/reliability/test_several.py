"""Eight processes on one folder, on a file system whose locks do nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
KILLS = 2


def test_eight_processes_some_of_them_killed(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.reliability.several", str(tmp_path), str(KILLS)],
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
