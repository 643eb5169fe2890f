"""The folder of a run.

    run.json            id, full recipe, fingerprints of data and weights, environment; written once
    sessions.jsonl      one line per start or resume, with its environment
    records.jsonl       one line per evaluation
    model.safetensors   the selected weights
    predictions.safetensors   their predictions for each image of the unseen domain
    confidence.safetensors    how predictions in a new domain are judged; mecam fit writes it after the end
    timing.json         the training time; it differs between equal runs, and takes no part in them
    checkpoint/         the state to resume from
    done.json           the result, and checksums of the files above; written last

run.json, done.json and each line of sessions.jsonl end in a checksum of their own. Whatever is read of a finished run
is verified. A checkpoint is verified in full, with the records before it, when a run resumes.

A run calls `begin`, at each evaluation `append` and then `save_checkpoint`, at the end `write_model` and `finish`. A
folder has one writer at a time, and any number of readers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mecam.runs import checkpoint, records, sessions
from mecam.runs._tensors import pack, unpack
from mecam.runs.claim import Writer, claim
from mecam.runs.summary import in_words, summary
from mecam.storage.checksums import digest, digest_file, read_sealed, seal
from mecam.storage.files import RunError, clean, make_folder, read_bytes, reading

if TYPE_CHECKING:  # tables are made without torch, which takes a second to import
    from torch import Tensor

SHOWN = 5  # differences between two recipes in an error message
START_OVER = "Give another --out, or remove that folder to start over"


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.run_file = self.path / "run.json"
        self.sessions_file = self.path / "sessions.jsonl"
        self.records_file = self.path / "records.jsonl"
        self.model_file = self.path / "model.safetensors"
        self.predictions_file = self.path / "predictions.safetensors"
        self.confidence_file = self.path / "confidence.safetensors"
        self.tracking_file = self.path / "tracking.jsonl"
        self.checkpoint_folder = self.path / "checkpoint"
        self.done_file = self.path / "done.json"
        self.writer = Writer()

    def __repr__(self) -> str:
        return f"<RunFolder {self.path}: {in_words(self)}>"

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the claim on the folder, and write through it. Raise ClaimedError if another process holds it."""
        try:
            with claim(self.path) as self.writer:
                yield
        finally:
            self.writer = Writer()

    def __fspath__(self) -> str:
        return str(self.path)

    def summary(self) -> str:
        """Return what was trained, how far it is, its accuracies and its files, as text."""
        return summary(self)

    def begin(
        self,
        recipe: Mapping[str, Any],
        environment: Mapping[str, Any],
        *,
        run_id: str,
        fingerprints: Mapping[str, Any] | None = None,
    ) -> dict[str, Any] | None:
        """Start or resume the run. Return the state of its last checkpoint, None if there is none.

        Records after that checkpoint are removed: the run will repeat them. This session's environment and first step
        are added to sessions.jsonl. A folder with another recipe, or with other fingerprints of what the run is trained
        on, is an error. A finished run is left unchanged.
        """
        new = {} if fingerprints is None else {"fingerprints": fingerprints}
        if self.exists():
            self._require_same("of another recipe", self.read_run().get("recipe"), recipe)
        else:
            self._create({"id": run_id, "recipe": recipe, **new, "environment": environment})
        if self.is_done():
            return None
        clean(self.path, self.writer.remove)
        state = self.load_checkpoint()  # verifies the records, so before they are cut
        if state is not None:  # what a former owner left that was stopped while it removed an earlier checkpoint
            checkpoint.sweep(self.checkpoint_folder, self.writer)
        for known in (self.read_run(), state or {}):  # a run of an earlier version has them in its new checkpoints only
            if new and "fingerprints" in known:
                self._require_same("on other data or weights", known["fingerprints"], fingerprints)
        last = records.step_of(state) if state else None
        records.cut(self.records_file, last, self.writer.write)
        first = 0 if last is None else last + 1
        session = {"step": first, "environment": environment}
        sessions.append(self.sessions_file, self._id(), session, self.writer.write)
        return state

    def append(self, record: Mapping[str, Any]) -> None:
        """Add the record of an evaluation: a JSON object with an integer `step` above the last one's."""
        records.append(self.records_file, record, self.writer.write)

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Save the state to resume from (see mecam.runs.checkpoint). Records up to state["step"] come before it."""
        records.step_of(state)
        before = {file.name: [len(data), digest(data)] for file, data in self._lines()}
        content = {"run": _digest(self.run_file), "before": before, "state": state}
        checkpoint.save(self.checkpoint_folder, content, self.writer)

    def write_model(self, weights: Mapping[str, Tensor], metadata: Any = None) -> None:
        """Write the selected weights. Equal weights and metadata give equal bytes: put no time and no path in it."""
        self.writer.write(self.model_file, pack(weights, metadata))

    def write_predictions(self, predictions: Mapping[str, Tensor]) -> None:
        """Write the predictions for each image of the target, as columns of equal length."""
        self.writer.write(self.predictions_file, pack(predictions))

    def write_confidence(self, tensors: Mapping[str, Tensor], facts: Any) -> None:
        """Write how predictions of the model are judged, with a checksum of its own. The run must have finished."""
        own = {"model": self._model_digest(), "facts": facts, "digest": digest(pack(tensors, facts))}
        self.writer.write(self.confidence_file, pack(tensors, own))

    def finish(self, result: Mapping[str, Any]) -> None:
        """Mark the run as done, with its result."""
        checksums = {file.name: _digest(file) for file in self._summed() if file.exists()}
        has_sessions = sessions.end(self.sessions_file, self._id(), "done", self.writer.write)
        self.writer.write(self.done_file, seal({"result": result, "sha256": checksums, "sessions": has_sessions}))

    def exists(self) -> bool:
        """Return whether a run has begun here."""
        return self.run_file.exists()

    def end_session(self, reason: str) -> None:
        """Record why this session ended, in a run that has not finished."""
        sessions.end(self.sessions_file, self._id(), reason, self.writer.write)

    def has_checkpoint(self) -> bool:
        """Return whether there is a checkpoint to resume from."""
        if not self.checkpoint_folder.exists():
            return False
        if self.checkpoint_folder.is_symlink():
            raise RunError(f"{self.checkpoint_folder} is a link; a checkpoint is a folder of its run. Remove the link")
        return self.exists() and checkpoint.exists(self.checkpoint_folder)

    def is_done(self) -> bool:
        """Return whether the run has finished."""
        return self.done_file.exists()

    def read_run(self) -> dict[str, Any]:
        """Return run.json: id, recipe, environment. In a finished run, verify that done.json belongs to it."""
        run = read_sealed(self.run_file)
        if self.is_done():
            done = read_bytes(self.done_file)  # not parsed: tables read thousands of them, and parse them later
            if _digest(self.run_file).encode() not in done:
                self._read_done()  # which raises, and says why
        return run

    def read_records(self) -> list[dict[str, Any]]:
        """Return the records so far, without a last line that a kill cut off."""
        if self.is_done():
            self._verify(self.records_file)
        return records.read(self.records_file)

    def read_sessions(self) -> list[dict[str, Any]]:
        """Return first step and environment of each start or resume; nothing if the run is older than the file."""
        expected = self.is_done() and self._read_done().get("sessions") is True
        return sessions.read(self.sessions_file, self._id(), finished=expected)

    def load_checkpoint(self) -> dict[str, Any] | None:
        """Return the state to resume from, None if there is none. Verify the lines written before it."""
        if not self.has_checkpoint():
            return None
        saved = checkpoint.load(self.checkpoint_folder)
        if not isinstance(saved, dict) or saved.get("run") != _digest(self.run_file):
            raise RunError(
                f"the checkpoint {self.checkpoint_folder} is not of the run in {self.run_file}, or one of the two was "
                "changed. Remove that folder to train from the start"
            )
        current = {file.name: data for file, data in self._lines()}
        for name, (size, expected) in saved["before"].items():
            if digest(current.get(name, b"")[:size]) != expected:
                raise RunError(
                    f"{self.path / name} is damaged: it changed since the last checkpoint. Remove the folder "
                    f"{self.checkpoint_folder} to train from the start"
                )
        state: dict[str, Any] = saved["state"]
        return state

    def read_model(self) -> tuple[dict[str, Tensor], Any]:
        """Return the selected weights, on the CPU, and the metadata. In a finished run, verify them."""
        return self._read_tensors(self.model_file)

    def read_predictions(self) -> dict[str, Tensor]:
        """Return the predictions, nothing for a run without them."""
        file = self.predictions_file
        exists = file.exists() or (self.is_done() and file.name in self._read_done()["sha256"])
        return self._read_tensors(file)[0] if exists else {}

    def read_confidence(self) -> tuple[dict[str, Tensor], Any] | None:
        """Return how predictions of the model are judged. None without it, and where it is of a former model."""
        if not (self.is_done() and self.confidence_file.exists()):
            return None
        try:
            tensors, own = unpack(read_bytes(self.confidence_file))
            if own["digest"] != digest(pack(tensors, own["facts"])):
                raise ValueError("its content does not match its checksum")
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{self.confidence_file} is damaged ({error}). Remove it; the mecam fit command writes it again"
            ) from error
        return (tensors, own["facts"]) if own["model"] == self._model_digest() else None

    def read_result(self) -> dict[str, Any]:
        """Return the result that `finish` was given. Verify that it belongs to the run in run.json."""
        result = self._read_done().get("result")
        if not isinstance(result, dict):
            raise RunError(f"{self.done_file} is damaged: it holds no result")
        return result

    def verify(self) -> None:
        """Compare every file with its checksum. A RunError names the first damaged one."""
        self.read_sessions()
        if not self.is_done():
            self.load_checkpoint()
            self.read_records()
            return
        for name in self._read_done()["sha256"]:
            if Path(name).name != name:  # nothing is read elsewhere, whoever wrote it
                raise RunError(f"{self.done_file} is damaged: {name!r} is no file of this folder")
            self._verify(self.path / name)
        self.read_confidence()

    def _model_digest(self) -> str:
        return str(self._read_done()["sha256"].get(self.model_file.name))

    def _read_done(self) -> dict[str, Any]:
        """Return done.json. Verify that it belongs to run.json, and that no file is without a checksum."""
        done = read_sealed(self.done_file)
        sums = done.get("sha256")
        if not isinstance(sums, dict) or not all(isinstance(each, str) for each in sums.values()):
            raise RunError(f"{self.done_file} is damaged: it holds no checksums of the run's files")
        if sums.get(self.run_file.name) != _digest(self.run_file):
            raise RunError(f"{self.run_file} is damaged, or {self.done_file} is another run's: their checksums differ")
        for file in self._summed():
            if file.name not in sums and os.path.lexists(file):
                raise RunError(f"{self.done_file} is damaged: it has no checksum of {file.name}")
        return done

    def _summed(self) -> tuple[Path, ...]:
        """Return the files that have a checksum in done.json if they exist."""
        return (self.run_file, self.records_file, self.model_file, self.predictions_file, self.tracking_file)

    def _read_tensors(self, file: Path) -> tuple[dict[str, Tensor], Any]:
        data = read_bytes(file)
        if self.is_done():
            self._verify(file, data)
        try:
            return unpack(data)
        except ValueError as error:
            raise RunError(f"{file} is damaged ({error})") from error

    def _lines(self) -> Iterator[tuple[Path, bytes]]:
        """Yield the files that grow during the run."""
        for file in (self.records_file, self.tracking_file):
            if file.exists():
                yield file, read_bytes(file)

    def _create(self, run: dict[str, Any]) -> None:
        make_folder(self.path)
        parts = (self.sessions_file, self.records_file, self.model_file, self.checkpoint_folder, self.done_file)
        orphans = [part.name for part in parts if part.exists()]
        if orphans:
            raise RunError(f"{self.path} holds {', '.join(orphans)} of some run, but not its run.json. {START_OVER}")
        self.writer.write(self.run_file, seal(run))

    def _require_same(self, what: str, there: Any, here: Any) -> None:
        """Raise an error that names the differences between what the folder holds and what is given."""
        pairs = _pairs(there, json.loads(json.dumps(here)))
        changes = [f"{name} is {old} there and {new} here" for name, old, new in pairs if old != new]
        if changes:
            more = f"; and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
            listed = "; ".join(changes[:SHOWN])
            raise RunError(f"{self.path} holds a run {what}: {listed}{more}. {START_OVER}")

    def _verify(self, file: Path, data: bytes | None = None) -> None:
        """Compare a file, or `data`, its content, with its checksum, if done.json has one."""
        expected = self._read_done()["sha256"].get(file.name)
        if expected is not None and expected != (_digest(file) if data is None else digest(data)):
            raise RunError(f"{file} is damaged: its content does not match its checksum in {self.done_file.name}")

    def _id(self) -> str:
        return str(self.read_run().get("id"))


def _digest(file: Path) -> str:
    with reading(file):
        return digest_file(file)


def _pairs(there: Any, here: Any, name: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the leaves of two JSON values: name and both values as JSON text (in which NaN equals NaN)."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in dict.fromkeys((*there, *here)):
            yield from _pairs(there.get(key), here.get(key), f"{name}.{key}" if name else key)
    else:
        yield name or "recipe", json.dumps(there, sort_keys=True), json.dumps(here, sort_keys=True)
