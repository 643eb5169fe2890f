"""Repeat a run from its recipe and compare the results: `mecam rerun`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mecam.data.domains import DomainSet
from mecam.progress import Progress, silent
from mecam.recipe import recipe_of
from mecam.runs import RunError, RunFolder, sessions
from mecam.storage.files import read_bytes
from mecam.training.loop import Warn, carry_out
from mecam.training.reopen import reopen, require_weights

FILES = ("records.jsonl", "model.safetensors", "predictions.safetensors", "tracking.jsonl")


@dataclass(frozen=True)
class Comparison:
    """The comparison of a run with its repetition."""

    again: RunFolder
    differences: tuple[str, ...]  # the first in each of records, weights, predictions and result; none: the same bytes
    surroundings: tuple[str, ...]  # differences between the environments
    expected: str = ""  # circumstances that explain differences; empty: the bytes should be the same
    inputs: tuple[str, ...] = ()  # differences between the data and weights

    @property
    def is_same(self) -> bool:
        return not self.differences

    def lines(self) -> list[str]:
        """Return the lines to print."""
        surroundings = [f"the data or the weights differ: {difference}" for difference in self.inputs]
        surroundings += [f"the environments differ: {difference}" for difference in self.surroundings]
        if self.is_same:
            return [*surroundings, "the same bytes: records, weights, predictions and result"]
        lines = [*surroundings, *(f"different: {difference}" for difference in self.differences)]
        if self.expected:
            cause = "results may differ in the last bits, and training amplifies that"
            lines.append(f"a possible cause: {self.expected}; {cause}")
        return lines


def rerun(
    run: RunFolder,
    out: Path | str,
    *,
    device: str = "auto",
    progress: Progress = silent,
    data: DomainSet | Path | str | None = None,
    weights: Path | str | None = None,
    warn: Warn = warnings.warn,
) -> Comparison:
    """Train the recipe of a finished run once more, in `out`, and compare the two runs byte by byte.

    `data` and `weights` are what the run was trained on. Default: the paths in the run, if they were used here before.
    """
    recipe = recipe_of(run.path)
    if not run.is_done():
        raise RunError(f"{run.path} is not finished; there is nothing to compare with. Resume it first")
    run.verify()
    if soup := run.read_result().get("soup"):
        raise RunError(
            f"{run.path} is a soup of {len(soup)} runs, which no recipe trains; repeat its mecam soup command"
        )
    if RunFolder(Path(out) / recipe.run_id).is_done():
        raise RunError(f"{out} has that run already, finished; give another --out")
    require_weights(run.path, recipe, weights)
    if data is None or isinstance(data, (Path, str)):  # other data shows in the result
        data = reopen(run.path, recipe, data)
    there = _environments(run)
    with _threads(there[0].get("threads")):
        again = carry_out(recipe, out, device=device, progress=progress, data=data, warn=warn)
    here = _environments(again)
    surroundings = tuple(_between(there[0], here[0]))
    old, new = (one.read_run().get("fingerprints") for one in (run, again))
    inputs = () if old is None else tuple(_between(old, new))  # a run of an earlier version has none
    return Comparison(again, tuple(_differences(run, again)), surroundings, _expected(there, here), inputs)


def _environments(run: RunFolder) -> list[dict[str, Any]]:
    """Return the environments of the sessions of a run, in order; a run without sessions.jsonl has one."""
    environments = [session.get("environment") for session in sessions.used(run.read_sessions()) or [run.read_run()]]
    return [environment if isinstance(environment, dict) else {} for environment in environments]


def _expected(there: list[dict[str, Any]], here: list[dict[str, Any]]) -> str:
    """Describe the circumstances in which two runs differ."""
    spelled = [sessions.spelled(one) for one in sessions.differing([*there, *here])]
    if not any(spelled):
        return ""
    one, other = (", then ".join(dict.fromkeys(part)) for part in (spelled[: len(there)], spelled[len(there) :]))
    return f"{one} there and {other} here"


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Use as many threads as the run had: sums over several may be rounded differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _differences(run: RunFolder, again: RunFolder) -> Iterator[str]:
    for name in FILES:
        one, other = (read_bytes(file) if file.exists() else None for file in (run.path / name, again.path / name))
        if one != other:
            yield f"{name}: {_first(name, run, again)}"
    for difference in islice(_between(run.read_result(), again.read_result()), 1):
        yield f"done.json: {difference}"


def _first(name: str, run: RunFolder, again: RunFolder) -> str:
    """Describe the first difference between two files of this name."""
    files = run.path / name, again.path / name
    missing = [str(file) for file in files if not file.exists()]
    if missing:
        return f"there is no {missing[0]}"
    if name.endswith(".jsonl"):
        return _first_line(*(read_bytes(file).splitlines() for file in files))
    if name == run.predictions_file.name:
        return _first_number(run.read_predictions(), again.read_predictions())
    return _first_number(run.read_model()[0], again.read_model()[0])


def _first_line(one: list[bytes], other: list[bytes]) -> str:
    for number, (line, another) in enumerate(zip(one, other, strict=False), start=1):
        if line != another:
            return f"line {number}: {next(_between(json.loads(line), json.loads(another)), 'written differently')}"
    return f"{len(one)} lines there and {len(other)} here"


def _first_number(one: dict[str, Tensor], other: dict[str, Tensor]) -> str:
    for name in dict.fromkeys((*one, *other)):
        if name not in one or name not in other:
            return f"{name} is {'not there' if name not in one else 'not here'}"
        old, new = one[name], other[name]
        if old.dtype != new.dtype or old.shape != new.shape:
            return f"{name} is {old.dtype} {list(old.shape)} there and {new.dtype} {list(new.shape)} here"
        differs = _bits(old) != _bits(new)
        if differs.any():
            place = torch.nonzero(differs)[0].tolist()
            values = f"{old[tuple(place)].item()!r} there and {new[tuple(place)].item()!r} here"
            return (
                f"{name}{place or ''} is {values}, the first of {int(differs.sum()):,} of {differs.numel():,} numbers"
            )
    return "written differently"


def _bits(tensor: Tensor) -> Tensor:
    """Return the bits of the numbers, so that NaN equals itself and 0.0 is not -0.0."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(kinds[tensor.element_size()])


def _between(there: Any, here: Any, name: str = "") -> Iterator[str]:
    """Yield the leaves in which two JSON values differ."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in dict.fromkeys((*there, *here)):
            yield from _between(there.get(key), here.get(key), f"{name}.{key}" if name else key)
    elif json.dumps(there) != json.dumps(here):
        yield f"{name or 'it'} is {json.dumps(there)} there and {json.dumps(here)} here"
