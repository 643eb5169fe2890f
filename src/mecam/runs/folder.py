"""The folder of a run: what is in it, and how it survives whatever kills the run.

    run.json            id, full recipe, environment; written once
    sessions.jsonl      one line per start or resume, with its environment
    records.jsonl       one line an evaluation
    model.safetensors   the selected weights
    predictions.safetensors   what they say of each image of the unseen domain
    checkpoint/         where to go on
    done.json           the result, and checksums of the files above; written last

run.json, done.json and each line of sessions.jsonl end in a checksum of their own. Whatever is read of a finished run
is checked; a checkpoint is checked in full, with the records before it, when a run goes on from it.

A run, at its first start as after a kill:

    folder = RunFolder(out / run_id)
    state = folder.begin(recipe, environment, run_id=run_id)  # None: from the start
    if not folder.is_done():
        for each evaluation:
            folder.append(record)  # first the record,
            folder.save_checkpoint(state)  # then the checkpoint that goes on after it
        folder.write_model(weights)
        folder.finish(result)

A folder has one writer at a time, and any number of readers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mecam.runs import records, sessions
from mecam.runs.atomic import RunError, clean, digest, make_folder, read_bytes, read_sealed, seal, write_atomic

if TYPE_CHECKING:  # torch takes a second to import, and tables are made without it: imported where tensors are
    from torch import Tensor

RUN_KEYS, DONE_KEYS = ("id", "recipe", "environment"), ("result", "sha256")
SHOWN = 5  # differences between two recipes in an error message


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.run_file = self.path / "run.json"
        self.sessions_file = self.path / "sessions.jsonl"
        self.records_file = self.path / "records.jsonl"
        self.model_file = self.path / "model.safetensors"
        self.predictions_file = self.path / "predictions.safetensors"
        self.tracking_file = self.path / "tracking.jsonl"
        self.checkpoint_folder = self.path / "checkpoint"
        self.done_file = self.path / "done.json"
        self.guard: Callable[[], None] = _unguarded  # of the claim; it refuses to let this process write any more

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    def begin(self, recipe: Mapping[str, Any], environment: Mapping[str, Any], *, run_id: str) -> dict[str, Any] | None:
        """Start the run, or go on with it: the state of its last checkpoint, None if there is none.

        Records of evaluations after that checkpoint are cut off: the run will make them again. The environment and the
        first step of this session are added to sessions.jsonl. A folder that holds another recipe is refused; a
        finished run is left as it is.
        """
        if self.exists():
            self._refuse_other(recipe)
        else:
            self._create({"id": run_id, "recipe": recipe, "environment": environment})
        if self.is_done():
            return None
        clean(self.path)
        state = self.load_checkpoint()  # which looks at the records as they are
        last = records.step_of(state) if state else None
        records.cut(self.records_file, last)
        first = 0 if last is None else last + 1
        sessions.append(self.sessions_file, self._id(), {"step": first, "environment": environment})
        return state

    def append(self, record: Mapping[str, Any]) -> None:
        """Add the record of an evaluation: a JSON object with a whole number `step`, above the last one's."""
        self.guard()
        records.append(self.records_file, record)

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Save where to go on (see mecam.runs.checkpoint); state["step"] says which records come before it."""
        from mecam.runs import checkpoint

        records.step_of(state)
        self.guard()
        before = {file.name: [len(data), digest(data)] for file, data in self._lines()}
        checkpoint.save(self.checkpoint_folder, {"run": self._digest(self.run_file), "before": before, "state": state})

    def write_model(self, weights: Mapping[str, Tensor], metadata: Any = None) -> None:
        """Write the selected weights. Equal weights and metadata give equal bytes: put no time and no path in it."""
        from mecam.runs._tensors import pack

        self.guard()
        write_atomic(self.model_file, pack(weights, metadata))

    def write_predictions(self, predictions: Mapping[str, Tensor]) -> None:
        """Write what the selected weights say of each image of the target; columns of equal length."""
        from mecam.runs._tensors import pack

        self.guard()
        write_atomic(self.predictions_file, pack(predictions, None))

    def finish(self, result: Mapping[str, Any]) -> None:
        """Say that the run is done and what came out of it."""
        self.guard()
        files = (self.run_file, self.records_file, self.model_file, self.predictions_file, self.tracking_file)
        checksums = {file.name: self._digest(file) for file in files if file.exists()}
        told = sessions.end(self.sessions_file, self._id(), "done")
        write_atomic(self.done_file, seal({"result": result, "sha256": checksums, "sessions": told}))

    def exists(self) -> bool:
        """Whether a run has begun here."""
        return self.run_file.exists()

    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        from mecam.runs import checkpoint

        return self.exists() and self.checkpoint_folder.exists() and checkpoint.exists(self.checkpoint_folder)

    def is_done(self) -> bool:
        """Whether the run has finished."""
        return self.done_file.exists()

    def read_run(self) -> dict[str, Any]:
        """run.json: id, recipe, environment; of a finished run, checked to be the one that done.json is of."""
        run = read_sealed(self.run_file, RUN_KEYS)
        if self.is_done():
            done = read_bytes(self.done_file)  # not parsed: tables read thousands of them, and that they do later
            if b'"run.json": "' in done and self._digest(self.run_file).encode() not in done:
                raise self._of_another()
        return run

    def read_records(self) -> list[dict[str, Any]]:
        """The records so far; a last line that a kill cut off is left out."""
        if self._expects(self.records_file):
            self._verify(self.records_file)
        return records.read(self.records_file)

    def read_sessions(self) -> list[dict[str, Any]]:
        """One object per start or resume: its first step, its environment; none if the run is older than the file."""
        expected = self.is_done() and self._read_done().get("sessions") is True
        return sessions.read(self.sessions_file, self._id(), finished=expected)

    def load_checkpoint(self) -> dict[str, Any] | None:
        """The state to go on from, None if there is none; the lines written before it are checked."""
        if not self.checkpoint_folder.exists():
            return None
        from mecam.runs import checkpoint

        if not checkpoint.exists(self.checkpoint_folder):
            return None
        found = checkpoint.load(self.checkpoint_folder)
        if not isinstance(found, dict) or found.get("run") != self._digest(self.run_file):
            raise RunError(
                f"the checkpoint {self.checkpoint_folder} is not of the run in {self.run_file}, or one of the two was "
                "changed. Remove that folder to train from the start"
            )
        there = {file.name: data for file, data in self._lines()}
        for name, (size, expected) in found["before"].items():
            if digest(there.get(name, b"")[:size]) != expected:
                raise RunError(
                    f"{self.path / name} is damaged: it is not as it was at the last checkpoint. Remove the folder "
                    f"{self.checkpoint_folder} to train from the start"
                )
        state: dict[str, Any] = found["state"]
        return state

    def read_model(self) -> tuple[dict[str, Tensor], Any]:
        """The selected weights, on the CPU, and the metadata; of a finished run, checked against done.json."""
        return self._read_tensors(self.model_file)

    def read_predictions(self) -> dict[str, Tensor]:
        """What `write_predictions` was given; nothing for a run without them."""
        is_there = self.predictions_file.exists() or self._expects(self.predictions_file)
        return self._read_tensors(self.predictions_file)[0] if is_there else {}

    def read_result(self) -> dict[str, Any]:
        """What `finish` was given; checked to be the result of the run in run.json."""
        result = self._read_done().get("result")
        if not isinstance(result, dict):
            raise RunError(f"{self.done_file} is damaged: it holds no result")
        return result

    def verify(self) -> None:
        """Check every file against its checksum; a RunError names the first damaged one."""
        self.read_sessions()
        if not self.is_done():
            self.load_checkpoint()
            self.read_records()
            return
        for name in self._checksums():
            if Path(name).name != name:  # whoever wrote it: nothing is read elsewhere
                raise RunError(f"{self.done_file} is damaged: {name!r} is no file of this folder")
            self._verify(self.path / name)

    def _read_done(self) -> dict[str, Any]:
        done = read_sealed(self.done_file, DONE_KEYS)
        checksums = done.get("sha256")
        expected = checksums.get(self.run_file.name) if isinstance(checksums, dict) else None
        if expected is not None and expected != self._digest(self.run_file):
            raise self._of_another()
        return done

    def _of_another(self) -> RunError:
        return RunError(
            f"{self.run_file} is damaged, or {self.done_file} is another run's: its checksum there is another"
        )

    def _checksums(self) -> dict[str, str]:
        checksums = self._read_done().get("sha256")
        return checksums if isinstance(checksums, dict) else {}

    def _expects(self, file: Path) -> bool:
        """Whether this is a finished run that had this file."""
        return self.is_done() and file.name in self._checksums()

    def _read_tensors(self, file: Path) -> tuple[dict[str, Tensor], Any]:
        from mecam.runs._tensors import unpack

        data = read_bytes(file)
        if self.is_done():
            self._verify(file, data)
        try:
            return unpack(data)
        except ValueError as error:
            raise RunError(f"{file} is damaged ({error})") from error

    def _lines(self) -> Iterator[tuple[Path, bytes]]:
        """The files that grow as the run goes on."""
        for file in (self.records_file, self.tracking_file):
            if file.exists():
                yield file, read_bytes(file)

    def _create(self, run: dict[str, Any]) -> None:
        make_folder(self.path)
        parts = (self.sessions_file, self.records_file, self.model_file, self.checkpoint_folder, self.done_file)
        orphans = [part.name for part in parts if part.exists()]
        if orphans:
            raise RunError(
                f"{self.path} holds {', '.join(orphans)} of some run, but not its run.json. Give another --out, or "
                "remove that folder to start over"
            )
        write_atomic(self.run_file, seal(run))

    def _refuse_other(self, recipe: Mapping[str, Any]) -> None:
        there, here = self.read_run().get("recipe"), json.loads(json.dumps(recipe))
        found = [f"{name} is {old} there and {new} here" for name, old, new in _pairs(there, here) if old != new]
        if found:
            more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
            raise RunError(
                f"{self.path} holds a run of another recipe: {'; '.join(found[:SHOWN])}{more}. Give another --out, or "
                "remove that folder to start over"
            )

    def _verify(self, file: Path, data: bytes | None = None) -> None:
        """Compare a file, or these bytes of it, with its checksum; one that has none there is let pass."""
        expected = self._checksums().get(file.name)
        if expected is not None and expected != digest(read_bytes(file) if data is None else data):
            raise RunError(f"{file} is damaged: its content does not match its checksum in {self.done_file.name}")

    def _id(self) -> str:
        return str(self.read_run().get("id"))

    def _digest(self, file: Path) -> str:
        return digest(read_bytes(file))


def _unguarded() -> None: ...


def _pairs(there: Any, here: Any, name: str = "") -> Iterator[tuple[str, str, str]]:
    """The leaves of two JSON values: name, the one's, the other's, as JSON text (in which NaN equals NaN)."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in dict.fromkeys((*there, *here)):
            yield from _pairs(there.get(key), here.get(key), f"{name}.{key}" if name else key)
    else:
        yield name or "recipe", json.dumps(there, sort_keys=True), json.dumps(here, sort_keys=True)
