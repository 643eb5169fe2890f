"""Run commands of mecam, each in a process of its own, for one start of Python and one import of torch."""

import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import mecam
from mecam._garbage import collect_rarely
from mecam.cli import main

END = "end of a command"
SOURCE = Path(mecam.__file__).parents[1]


class Ended(NamedTuple):
    code: int
    out: str
    err: str


def run_each(
    *commands: Sequence[object],
    cwd: Path,
    before: Callable[[], None] | None = None,
    launcher: Sequence[str] = (),
    **environment: str,
) -> list[Ended]:
    """Exit code, stdout and stderr of each command; they run one after another.

    Words NAME=value before a command are its own variables, as in a shell.
    `before`, `launcher` and `environment` apply to the start of Python and its imports too. None ends in a traceback.
    """
    surroundings = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "MECAM_CACHE": str(cwd / "cache")}
    surroundings |= environment
    done = subprocess.run(
        [*launcher, sys.executable, "-P", __file__, *(str(word) for words in commands for word in (*words, END))],
        cwd=cwd, env={k: v for k, v in surroundings.items() if v}, preexec_fn=before,
        capture_output=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    ended = [Ended(*of) for of in json.loads(done.stdout)]
    for words, of in zip(commands, ended, strict=True):
        assert "Traceback" not in of.err, (words, of.err)
    return ended


def fork_each(commands: list[list[str]]) -> None:
    collect_rarely()
    for needed in ("torch._dynamo", "mecam.training"):  # optimizers import the first
        importlib.import_module(needed)
    gc.freeze()  # a search would copy the memory shared with each process
    ended = []
    for words in commands:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = os.fork()
            if child == 0:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                while "=" in words[0]:
                    name, _, value = words.pop(0).partition("=")
                    os.environ[name] = value
                sys.argv[1:] = words
                main()
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            said = []
            for file in (out, err):
                file.seek(0)
                said.append(file.read().decode(errors="surrogateescape"))
            ended.append((code, *said))
    json.dump(ended, sys.stdout)


if __name__ == "__main__":
    fork_each([list(words) for end, words in groupby(sys.argv[1:], END.__eq__) if not end])
