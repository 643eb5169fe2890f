"""Make a folder the folder of a finished run, in place of the run that it held before."""

from __future__ import annotations

from pathlib import Path

from mecam.runs import RunFolder
from mecam.runs.claim import Writer
from mecam.storage.files import read_bytes


def publish(run: RunFolder, out: Path, writer: Writer) -> None:
    """Copy the files of a finished run to `out`; a no-op if they are there.

    All copies are complete before the first one takes its place, so that a kill finds the former run or the new one. In
    the few microseconds between the names a reader may find files of both, and reports a wrong checksum; publishing
    again repairs that.
    """
    files = (run.run_file, run.sessions_file, run.records_file, run.model_file, run.predictions_file, run.done_file)
    present = [file for file in files if file.exists()]
    if all(_same(file, out / file.name) for file in present):
        return
    run.verify()
    writer.write_together({out / file.name: read_bytes(file) for file in present})  # done.json is the last


def _same(file: Path, other: Path) -> bool:
    return other.exists() and read_bytes(file) == read_bytes(other)
