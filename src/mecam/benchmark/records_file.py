"""A records file: the outcome of many runs in one JSON file, without their weights.

One line per run, by its id, so that a diff of two versions shows runs:

    "shapes-art-erm-adam-none-seed0-1d5b8acd7b": {"recipe": {...}, "result": {...}, "evaluations": [...], ...}

`mecam bench --records FILE` adds finished runs and skips those in the file; `mecam table FILE` reads it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from mecam.runs import RunError, RunFolder, read_json, write_atomic
from mecam.runs.timing import read_timing
from mecam.splits import summarize

MEASUREMENTS = "measurements.json"  # in a run's folder, by --measure


class Evaluation(NamedTuple):
    """One evaluation of a run: fractions, and the loss on the sources' held-out parts."""

    step: int
    validation: float | None  # None: nothing is held out
    loss: float | None
    target: float | None  # None: no domain is left out


@dataclass(frozen=True)
class Record:
    """A finished run without its weights."""

    recipe: Mapping[str, Any]
    result: Mapping[str, Any]  # as in done.json
    evaluations: Sequence[Evaluation]
    seconds: float | None = None  # of training
    environment: Mapping[str, Any] = field(default_factory=dict)
    measurements: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


def read_records(path: Path | None) -> dict[str, Record]:
    """Return the records in a file by run id; none if there is no file."""
    if path is None or not path.exists():
        return {}
    try:
        records = {run_id: Record(**values) for run_id, values in read_json(path.resolve()).items()}
        return {
            run_id: replace(record, evaluations=[Evaluation(*one) for one in record.evaluations])
            for run_id, record in records.items()
        }
    except TypeError as error:
        raise RunError(f"{path} is not a records file of mecam bench: {error}") from error


def add_records(path: Path, folders: Iterable[Path]) -> None:
    """Add finished runs to a file, atomically; a run that is there already gets its new measurements only."""
    with _locked(path.parent):
        known = read_records(path)
        records = dict(known)
        for folder in folders:
            record = of_run(folder)
            before = records.get(folder.name, record)
            if before.result == record.result:
                records[folder.name] = replace(before, measurements={**before.measurements, **record.measurements})
        if records != known:
            write_records(path, records)


def write_records(path: Path, records: Mapping[str, Record]) -> None:
    """Write records in the order of their ids."""
    lines = []
    for run_id, record in sorted(records.items()):
        values = {name: value for name, value in vars(record).items() if value not in (None, {}, "")}
        lines.append(f"{json.dumps(run_id)}: {json.dumps(values)}")
    write_atomic(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def of_run(path: Path) -> Record:
    """Return the record of a finished run."""
    folder = RunFolder(path)
    run, timing = folder.read_run(), read_timing(path)
    return Record(
        run["recipe"],
        folder.read_result(),
        evaluations_of(folder, run["recipe"].get("target")),
        None if timing is None else round(timing.seconds, 1),
        run["environment"],
        read_measurements(path),
    )


def evaluations_of(folder: RunFolder, target: str | None) -> list[Evaluation]:
    """Return the evaluations of a run."""
    evaluations = []
    for record in folder.read_records():
        accuracy, loss = (summarize(record["splits"], target, metric) for metric in ("accuracy", "loss"))
        evaluations.append(Evaluation(record["step"], accuracy.validation, loss.validation, accuracy.target))
    return evaluations


def second_half(evaluations: Sequence[Evaluation]) -> float | None:
    """Return the mean accuracy on the target over the evaluations in the second half of training."""
    values = [one.target for one in evaluations if 2 * one.step >= evaluations[-1].step and one.target is not None]
    return sum(values) / len(values) if values else None


def read_measurements(path: Path) -> dict[str, Any]:
    """Return the measurements of a run by name; none if there is no file."""
    file = path / MEASUREMENTS
    return read_json(file) if file.exists() else {}


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time read and write the records in this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
