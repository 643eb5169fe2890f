"""A benchmark in a time budget."""

import json
from pathlib import Path

import pytest

from mecam.benchmark import records_file
from mecam.benchmark.estimate import Budget
from mecam.benchmark.experiment import run_missing
from mecam.benchmark.jobs import Queue
from mecam.benchmark.local import LocalEngine
from mecam.progress import Event
from mecam.recipe import Recipe
from mecam.runs import RunFolder
from tests.benchmark.folders import write_run

TINY = {"steps": 99, "evaluate_every": 50, "batch": 4, "image_size": 16}


def timed(out: Path, seconds: float, **values: object) -> Recipe:
    """Write a finished run that took this long; return the same with another seed."""
    folder = write_run(out, 0.5, target="art", **TINY, **values)
    (folder / "timing.json").write_text(json.dumps({"seconds": seconds, "steps": 100}))
    return Recipe(**{"target": "art", "seed": 1, **TINY, **values})


def test_time_is_expected_from_runs_of_the_same_kind(tmp_path: Path) -> None:
    short, long = timed(tmp_path, 30, optimizer="adam"), timed(tmp_path, 90, optimizer="sam")
    budget = Budget(1, tmp_path)
    assert [budget.expected(recipe) for recipe in (short, long)] == [pytest.approx(30), pytest.approx(90)]
    unknown = Recipe(**{"target": "art", "optimizer": "mecam", **TINY})
    assert budget.expected(unknown) is None
    queue = Queue([long, short, unknown], budget)
    assert [queue.take(), queue.take(), queue.take()] == [short, unknown, None]
    assert (queue.rest(), bool(queue), budget.is_spent) == ([long], False, True)
    with pytest.raises(ValueError, match="--minutes 0"):
        Budget(0, tmp_path)


def test_what_is_left_of_a_run_counts_and_what_is_measured_after_it(tmp_path: Path) -> None:
    recipe = timed(tmp_path, 100)
    begun = RunFolder(tmp_path / recipe.run_id)
    begun.begin(recipe.to_dict(), {}, run_id=recipe.run_id)
    begun.append({"step": 49, "splits": {}})
    [finished] = [file.parent for file in tmp_path.glob("*/done.json")]
    (finished / "measurements.json").write_text('{"eigenvalue": {"seconds": 7}, "landscape": {"seconds": 1000}}')
    assert Budget(1, tmp_path, measure=("eigenvalue",)).expected(recipe) == pytest.approx(50 + 7)


def test_times_of_a_records_file_count_where_there_are_none_here(tmp_path: Path) -> None:
    recipe = timed(tmp_path / "elsewhere", 30)
    records_file.add_records(tmp_path / "records.json", (tmp_path / "elsewhere").iterdir())
    records = records_file.read_records(tmp_path / "records.json")
    assert Budget(1, tmp_path / "here", records=records).expected(recipe) == pytest.approx(30)


def test_a_run_that_would_not_finish_is_not_begun(tmp_path: Path) -> None:
    recipe = timed(tmp_path, 3600)
    events: list[Event] = []
    engine = LocalEngine(workers=1, device="cpu", budget=Budget(1, tmp_path))
    outcome = run_missing([recipe], tmp_path, engine=engine, progress=events.append)
    assert (outcome.done, outcome.stopped) == ([], [recipe.run_id])
    assert [event.kind for event in events] == ["stopped"]


def test_a_run_that_outlasts_the_budget_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MECAM_CACHE", str(tmp_path / "cache"))
    recipe = Recipe(**{"target": "art", **TINY, "steps": 100_000})
    budget = Budget(1, tmp_path)

    def end_soon(event: Event) -> None:
        if event.kind == "progress":
            budget.end = 0.0

    engine = LocalEngine(workers=1, device="cpu", budget=budget)
    outcome = run_missing([recipe], tmp_path / "out", engine=engine, progress=end_soon)
    assert outcome.stopped == [recipe.run_id]
    assert RunFolder(tmp_path / "out" / recipe.run_id).has_checkpoint()
