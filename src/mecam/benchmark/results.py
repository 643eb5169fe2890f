"""What finished runs found: read from their folders, damaged ones named and left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mecam.recipe import Recipe, spelled
from mecam.runs import RunError, RunFolder, runs_in
from mecam.runs.sessions import circumstances, differing
from mecam.runs.sessions import spelled as in_words

DAMAGE = (ValueError, KeyError, TypeError, AttributeError)  # what reading a damaged or foreign JSON file may end in
AGAIN = "to run it again, remove that folder"
NAMED = 3  # runs in a note
ENTRIES = {entry.name for entry in fields(Recipe)}


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

    @cached_property
    def data(self) -> str:
        return spelled(self.recipe.data) if self.by_path else Path(self.recipe.data).name

    @property
    def target(self) -> str:
        return str(self.recipe.target)

    @property
    def variant(self) -> dict[str, Any]:
        """All of the recipe that has no column of its own, flat."""
        columns = ("data", "target", "method", "optimizer", "averaging", "seed")
        return dict(_flat({name: value for name, value in vars(self.recipe).items() if name not in columns}))


def read(out: Path | str) -> tuple[list[Result], list[str]]:
    """Return the results in a folder, ordered by run id; and what is wrong with the runs that cannot be read."""
    found, problems = read_runs(runs_in(Path(out)))
    return [result for result in found if result.recipe.target is not None], problems


def read_runs(folders: Iterable[Path]) -> tuple[list[Result], list[str]]:
    """Return the results of these runs, also of those without a target; and what is wrong with the others."""
    results, problems = [], []
    for folder in folders:
        try:
            results.append(_read(folder))
        except (RunError, OSError, *DAMAGE) as error:
            problems.append(f"{folder} is left out: {_why(error)}")
    return _told_apart(results), problems


def recipe_of(folder: Path) -> Recipe:
    """The recipe in a run folder; an error for what is damaged, or of another version."""
    return _recipe(RunFolder(folder).read_run())


def _recipe(run: Mapping[str, Any]) -> Recipe:
    values = run["recipe"]
    unknown = set(values) - ENTRIES
    if unknown:
        raise ValueError(f"its recipe has entries of another version of mecam ({', '.join(sorted(unknown))})")
    return Recipe(**values)


def _read(folder: Path) -> Result:
    run = RunFolder(folder)
    described = run.read_run()
    recipe = _recipe(described)
    if not run.is_done():
        return Result(folder, recipe, None, None)
    result = run.read_result()
    held_out = [
        float(metrics["accuracy"])
        for split, metrics in result["splits"].items()
        if split.endswith(" out") and split != f"{recipe.target} out"
    ]
    validation = 100 * sum(held_out) / len(held_out) if held_out else None
    accuracy = None if recipe.target is None else 100 * float(result["target_accuracy"])
    made = circumstances(described.get("environment"))
    return Result(folder, recipe, accuracy, validation, str(result.get("data")), made)


def _told_apart(results: list[Result]) -> list[Result]:
    """Folders of one name and different data, such as lab/images and field/images, go by their paths.

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


def changed_data(results: Sequence[Result]) -> list[str]:
    """What to say of each data set whose runs are not all of the same images and labels."""
    finished: dict[str, list[Result]] = {}
    for result in results:
        if result.fingerprint is not None:
            finished.setdefault(result.data, []).append(result)
    mixed = (runs for runs in finished.values() if len({run.fingerprint for run in runs}) > 1)
    return [_changed(runs) for runs in mixed]


def mixed_circumstances(results: Sequence[Result]) -> list[str]:
    """One line if finished runs were begun under circumstances that may change the last bits; none otherwise."""
    found = differing([result.circumstances for result in results if result.accuracy is not None])
    groups = Counter(in_words(one) for one in found if one).most_common()
    if len(groups) < 2:
        return []
    named = ", ".join(f"{count} with {words}" for words, count in groups[:NAMED])
    more = f" and {sum(count for _, count in groups[NAMED:])} with others" if len(groups) > NAMED else ""
    return [f"the table mixes runs from different environments: {named}{more}; results may differ in the last bits"]


def _changed(runs: Sequence[Result]) -> str:
    latest = max(runs, key=_finished)
    others = [run.path.name for run in runs if run.fingerprint != latest.fingerprint]
    named = ", ".join(others[:NAMED]) + (", ..." if len(others) > NAMED else "")
    return (
        f"{latest.recipe.data} changed between runs: {len(others)} of {len(runs)} are of other data than the latest "
        f"({named}). Remove the folders of these and give the mecam bench command again, or use a new --out."
    )


def _finished(result: Result) -> tuple[int, str]:
    """When a run ended, as far as its files tell."""
    return RunFolder(result.path).done_file.stat().st_mtime_ns, result.path.name


def _why(error: Exception) -> str:
    if isinstance(error, (KeyError, TypeError, AttributeError)):
        return f"a file of it lacks what was expected there ({type(error).__name__}: {error}); {AGAIN}"
    return f"{error}; {AGAIN}" if isinstance(error, RunError) else str(error)


def _flat(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{name}.")
        else:
            yield f"{prefix}{name}", value
