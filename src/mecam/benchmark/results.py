"""Read the results of runs from their folders or from a records file; damaged ones are reported and left out."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from mecam.benchmark import records_file
from mecam.benchmark.records_file import Record
from mecam.columns import visible
from mecam.recipe import Recipe, recipe_of, spelled
from mecam.run_ids import beginning
from mecam.runs import RunError, RunFolder, runs_in
from mecam.runs.sessions import circumstances, differing
from mecam.runs.sessions import spelled as in_words
from mecam.splits import Part, Split, balanced_accuracy, is_about, number, percent, require_valid, summarize

DAMAGE = (ValueError, KeyError, TypeError, AttributeError)  # what reading a damaged or foreign JSON file may end in
AGAIN = "to run it again, remove that folder"
NAMED = 3  # runs in a note
AVERAGE, SUFFIX = "average", " (domain)"  # the target in tables of the average over a data set's targets
Accuracy = Literal["selected", "balanced", "second-half"]
ACCURACIES: tuple[Accuracy, ...] = get_args(Accuracy)
NOTES: dict[str, str] = {
    "balanced": "Accuracy of a run: balanced, the mean over classes.",
    "second-half": "Accuracy of a run: its mean over the evaluations in the second half of training.",
}


@dataclass(frozen=True)
class Result:
    """One run, finished or not."""

    path: Path
    recipe: Recipe
    accuracy: float | None  # on the unseen domain, percent; None: not finished, or no target
    validation: float | None  # the mean over the sources' held-out parts, percent; None: there are none
    fingerprint: str | None = None  # of the images and labels; None: not finished
    circumstances: Mapping[str, str] = field(default_factory=dict)  # which may change the last bits, from run.json
    by_path: bool = False  # whether another folder of the same name holds other data
    finished: int = 0  # when done.json was written, in nanoseconds; 0: not finished, or from a records file
    selected_step: int | None = None  # None: not finished, or the weights are an average (SWAD)
    balanced: float | None = None  # balanced accuracy on the unseen domain, percent; None: unknown
    classes: int = 0  # with images in the unseen domain; 0: unknown
    soup: int = 0  # runs in the average, for the model of mecam soup
    record: Record | None = None  # all that a records file has of the run

    @cached_property
    def data(self) -> str:
        return visible(spelled(self.recipe.data) if self.by_path else Path(self.recipe.data).name)

    @property
    def target(self) -> str:
        """The name of the target in tables; "" without one."""
        return target_name(self.recipe.target or "")

    @property
    def variant(self) -> dict[str, Any]:
        """The entries of the recipe without a column of their own, flat."""
        flat: dict[str, Any] = {}
        for name, value in vars(self.recipe).items():
            if isinstance(value, dict):
                flat |= {f"{name}.{setting}": chosen for setting, chosen in value.items()}
            elif name == "weights" and value is not None:
                flat[name] = _initial(self.recipe, Path(value))
            elif name not in ("data", "target", "sources", "method", "optimizer", "averaging", "seed"):
                flat[name] = value
        return flat


def _initial(recipe: Recipe, weights: Path) -> str:
    """Return the initial weights of a run; one name for those of a run on the same sources, whatever the target."""
    run = weights.parent
    of_a_run = weights.name == "model.safetensors" and run.name.startswith(f"{beginning(vars(recipe))}-")
    return str(run.parent / "run of the same target" if of_a_run else weights)


def target_name(domain: str) -> str:
    """Return the name of a domain in tables. A domain that is called average has a suffix there."""
    domain = visible(domain)
    return f"{domain}{SUFFIX}" if re.fullmatch(rf"{AVERAGE}(?:{re.escape(SUFFIX)})*", domain) else domain


def read(out: Path | str, *, accuracy: Accuracy = "selected") -> tuple[list[Result], list[str]]:
    """Return the results in a folder or records file, ordered by run id, and a problem for each run left out.

    Args:
        accuracy: "selected" is that of the selected weights, "balanced" their mean over classes. "second-half" is the
            mean over the evaluations in the second half of training, none of them chosen; runs whose weights are an
            average are left out.
    """
    out, half = Path(out), accuracy == "second-half"
    if out.is_file():
        records = {out / run_id: record for run_id, record in sorted(records_file.read_records(out).items())}
        every, problems = _readable(
            records, lambda path: replace(_of_record(path, records[path], half), record=records[path])
        )
    else:
        every, problems = read_runs(runs_in(out), half=half)
    problems += [
        f"{one.path} is left out: it is a soup of {one.soup} runs, not a run of a recipe" for one in every if one.soup
    ]
    results, copies = _one_each([one for one in every if one.recipe.target is not None and not one.soup])
    problems += copies
    if half:
        averaged = [result for result in results if result.accuracy is not None and result.selected_step is None]
        results = [result for result in results if result.accuracy is None or result.selected_step is not None]
        if averaged:
            names = ", ".join(sorted({result.recipe.averaging for result in averaged}))
            problems.append(f"{len(averaged)} runs are left out: no evaluation is of their averaged weights ({names})")
    if accuracy == "balanced":
        results = [replace(result, accuracy=result.balanced) for result in results]
    return results, problems


def read_runs(folders: Iterable[Path], *, half: bool = False) -> tuple[list[Result], list[str]]:
    """Return the results of these runs, also of those without a target, and a problem for each run left out."""
    return _readable(folders, lambda path: _of_folder(path, half))


def _readable(paths: Iterable[Path], read_one: Callable[[Path], Result]) -> tuple[list[Result], list[str]]:
    results, problems = [], []
    for path in paths:
        try:
            results.append(read_one(path))
        except (KeyError, TypeError, AttributeError) as error:
            why = f"one of its files lacks an expected entry ({type(error).__name__}: {error})"
            problems.append(f"{path} is left out: {why}; {AGAIN}")
        except (RunError, OSError, *DAMAGE) as error:
            problems.append(f"{path} is left out: {error}" + (f"; {AGAIN}" if isinstance(error, RunError) else ""))
    return _distinguished(results), problems


def _of_folder(path: Path, half: bool) -> Result:
    folder, recipe = RunFolder(path), recipe_of(path)
    if not folder.is_done():
        return Result(path, recipe, None, None)
    evaluations = records_file.evaluations_of(folder, recipe.target) if half else ()
    environment = folder.read_run().get("environment") or {}
    record = Record(recipe.to_dict(), folder.read_result(), evaluations, environment=environment)
    return replace(_of_record(path, record, half), finished=folder.done_file.stat().st_mtime_ns)


def _of_record(path: Path, record: Record, half: bool) -> Result:
    """Return the result of a finished run; its accuracy is that of the second half of its evaluations if `half`."""
    recipe, result = Recipe.from_dict(record.recipe), record.result
    if any(math.isnan(metrics.get("loss", 0)) for metrics in result["splits"].values()):
        raise ValueError("outputs of its network are not finite (NaN or infinity), so its accuracies are not valid")
    require_valid(result["splits"])
    accuracy: Any = records_file.second_half(record.evaluations) if half else _unseen(recipe, result)
    return Result(
        path,
        recipe,
        None if recipe.target is None else 100 * float(accuracy),
        percent(summarize(result["splits"], recipe.target).validation),
        str(result.get("data")),
        circumstances(record.environment),
        selected_step=_step(result.get("selected_step")),
        balanced=None if half else percent(balanced_accuracy(result["splits"], recipe.target)),
        classes=_classes(result["splits"], recipe.target),
        soup=len(result.get("soup", ())),
    )


def _unseen(recipe: Recipe, result: Mapping[str, Any]) -> float | None:
    return None if recipe.target is None else number(result, "target_accuracy")


def _step(step: Any) -> int | None:
    if step is not None and (isinstance(step, bool) or not isinstance(step, int) or step < 0):
        raise ValueError(f"selected_step={step!r} is not the number of a step")
    return step


def _classes(splits: Mapping[str, Any], target: str | None) -> int:
    """Return the number of classes that have images in the training part of the target; 0 if it is not stored."""
    recall = () if target is None else splits.get(str(Split(target, Part.TRAINING)), {}).get("recall", ())
    return sum(value is not None for value in recall)


def _distinguished(results: list[Result]) -> list[Result]:
    """Name folders of one name and different data, such as lab/images and field/images, by their paths.

    One folder may have several paths, from other places or other machines: its fingerprint is the same.
    """
    paths: dict[str, set[str]] = {}
    fingerprints: dict[str, set[str]] = {}
    for result in results:
        if result.fingerprint is not None:
            paths.setdefault(result.data, set()).add(spelled(result.recipe.data))
            fingerprints.setdefault(result.data, set()).add(result.fingerprint)
    mixed = {name for name in paths if len(paths[name]) > 1 and len(fingerprints[name]) > 1}
    return [replace(result, by_path=True) if result.data in mixed else result for result in results]


def _one_each(results: Sequence[Result]) -> tuple[list[Result], list[str]]:
    """Keep one of several folders of the same run, and return a note for each run that has several.

    A finished one comes before others, then the one with the run's id for its name, then the first by name.
    """
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(repr({**vars(result.recipe), "data": result.data}), []).append(result)
    notes: list[str] = []
    left_out: set[Path] = set()
    for same in groups.values():
        if len(same) > 1:
            first, *others = sorted(
                same, key=lambda one: (one.accuracy is None, one.path.name != one.recipe.run_id, one.path.name)
            )
            left_out.update(one.path for one in others)
            named = ", ".join(map(_reached, others[:NAMED])) + (", ..." if len(others) > NAMED else "")
            notes.append(f"{len(same)} folders hold the same run: {_reached(first)} is used, and not {named}")
    return [result for result in results if result.path not in left_out], notes


def _reached(result: Result) -> str:
    return f"{result.path.name} ({'not finished' if result.accuracy is None else f'{result.accuracy:.1f} %'})"


def changed_data(results: Sequence[Result]) -> list[str]:
    """Return a note for each data set whose images or labels differ between runs that read it in the same way."""
    finished: dict[tuple[str | None, ...], list[Result]] = {}
    for result in results:
        if result.fingerprint is not None:
            key = result.data, result.recipe.layout, result.recipe.domain_from
            finished.setdefault(key, []).append(result)
    notes = []
    for runs in finished.values():
        latest = max(runs, key=lambda run: (run.finished, run.path.name))
        others = [run.path.name for run in runs if run.fingerprint != latest.fingerprint]
        if others:
            named = ", ".join(others[:NAMED]) + (", ..." if len(others) > NAMED else "")
            notes.append(
                f"{latest.recipe.data} changed between runs: {len(others)} of {len(runs)} used other data than the "
                f"latest ({named}). Remove their folders and repeat the mecam bench command, or use a new --out."
            )
    return notes


def guesses(results: Iterable[Result]) -> list[str]:
    """Return a note on the runs that predict little more than the most frequent class, if there are some."""
    runs = [
        run
        for run in results
        if run.balanced is not None
        and run.accuracy is not None
        and run.classes > 1
        and run.accuracy > run.balanced + 1
        and is_about(run.balanced / 100, 1 / run.classes)
    ]
    if not runs:
        return []
    named = ", ".join(f"{run.path.name}: {run.accuracy:.1f} %, balanced {run.balanced:.1f} %" for run in runs[:NAMED])
    more = f" and {len(runs) - NAMED} more" if len(runs) > NAMED else ""
    return [
        f"{len(runs)} runs predict little more than the most frequent class: their balanced accuracy is about that of "
        f"guessing ({named}{more}). See --balanced and --class-weights"
    ]


def mixed_circumstances(results: Sequence[Result]) -> list[str]:
    """Return one line if circumstances that may change the last bits differ between finished runs; else none."""
    differences = differing([result.circumstances for result in results if result.accuracy is not None])
    groups = Counter(in_words(one) for one in differences if one).most_common()
    if len(groups) < 2:
        return []
    named = ", ".join(f"{count} with {words}" for words, count in groups[:NAMED])
    more = f" and {sum(count for _, count in groups[NAMED:])} with others" if len(groups) > NAMED else ""
    return [f"the table mixes runs from different environments: {named}{more}; results may differ in the last bits"]
