"""The settings of Python's garbage collector in our own processes."""

import subprocess
import sys

AT_THE_END = "import atexit, gc; atexit.register(lambda: print(gc.get_threshold()[0], gc.get_freeze_count() > 0)); "


def test_a_command_collects_rarely_and_not_at_its_end() -> None:
    command = "import sys; sys.argv = ['mecam', '--help']; from mecam.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", AT_THE_END + command], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "10000 True"
