"""A records file stands in for the folders of its runs."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mecam.benchmark import records_file
from mecam.benchmark.render import render
from mecam.benchmark.results import Accuracy, read
from mecam.benchmark.tables import rows
from mecam.recipe import Recipe
from mecam.runs import RunError
from tests.benchmark.folders import write_done, write_run

STUDY = Path(__file__).parents[2] / "benchmarks" / "results" / "pacs.json"


def fill(out: Path) -> list[Path]:
    return [
        write_run(
            out, accuracy, optimizer=optimizer, seed=seed, evaluations={0: 0.1, 50: 0.4, 100: accuracy + seed / 10}
        )
        for optimizer, accuracy in (("adam", 0.5), ("sam", 0.6))
        for seed in (0, 1)
    ]


@pytest.mark.parametrize("accuracy", ["selected", "second-half"])
def test_a_records_file_gives_the_table_of_its_folders(accuracy: Accuracy, tmp_path: Path) -> None:
    file = tmp_path / "records.json"
    records_file.add_records(file, fill(tmp_path / "out"))
    tables = [render(rows(read(place, accuracy=accuracy)[0]), "json") for place in (tmp_path / "out", file)]
    assert tables[0] == tables[1]


def test_the_mean_over_the_second_half_of_training(tmp_path: Path) -> None:
    """Steps 50 and 100 of 100: step 0 is left out, and no step is chosen."""
    fill(tmp_path)
    adam, sam = rows(read(tmp_path, accuracy="second-half")[0])
    assert adam.values == {("art", 0): pytest.approx(45), ("art", 1): pytest.approx(50)}
    assert sam.values == {("art", 0): pytest.approx(50), ("art", 1): pytest.approx(55)}


def test_averaged_weights_are_not_among_the_evaluations(tmp_path: Path) -> None:
    write_run(tmp_path, 0.5)
    averaged = write_run(tmp_path, 0.7, averaging="swad")
    done = json.loads((averaged / "done.json").read_text())
    done["result"]["selected_step"] = None
    write_done(averaged, done["result"])
    assert len(read(tmp_path)[0]) == 2
    results, problems = read(tmp_path, accuracy="second-half")
    assert [result.recipe.averaging for result in results] == ["none"]
    assert problems == ["1 runs are left out: no evaluation is of their averaged weights (swad)"]


def test_runs_are_added_once_and_keep_their_measurements(tmp_path: Path) -> None:
    file, [folder, *_] = tmp_path / "records.json", fill(tmp_path / "out")
    (folder / "timing.json").write_text('{"seconds": 3.21, "steps": 3}')
    records_file.add_records(file, [folder])
    before = file.read_bytes()
    records_file.add_records(file, [folder])
    assert file.read_bytes() == before
    (folder / records_file.MEASUREMENTS).write_text('{"eigenvalue": {"largest_eigenvalue": 2.0}}')
    records_file.add_records(file, [folder])
    [record] = records_file.read_records(file).values()
    assert (record.measurements, record.seconds) == ({"eigenvalue": {"largest_eigenvalue": 2.0}}, 3.2)
    assert Recipe(**record.recipe).run_id == folder.name


def test_processes_that_share_a_file_lose_no_run(tmp_path: Path) -> None:
    file, folders = tmp_path / "records.json", [write_run(tmp_path / "out", 0.5, seed=seed) for seed in range(8)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda folder: records_file.add_records(file, [folder]), folders))
    assert sorted(records_file.read_records(file)) == sorted(folder.name for folder in folders)


@pytest.mark.parametrize("content", ["{", "[]", '{"run": {"colour": "red"}}', '{"run": 1}'])
def test_another_file_is_refused_by_name(content: str, tmp_path: Path) -> None:
    file = tmp_path / "records.json"
    file.write_text(content)
    with pytest.raises(RunError, match=r"records\.json"):
        records_file.read_records(file)


def test_a_run_of_another_version_is_named(tmp_path: Path) -> None:
    file, [folder, *_] = tmp_path / "records.json", fill(tmp_path / "out")
    record = records_file.of_run(folder)
    later = records_file.Record({**record.recipe, "colour": "red"}, record.result, record.evaluations)
    records_file.write_records(file, {"old": record, "new": later})
    results, [problem] = read(file)
    assert len(results) == 1
    assert "new is left out: the recipe has entries of another version of mecam (colour)" in problem


def test_the_study_on_pacs() -> None:
    """The averages that benchmarks/results/pacs_lite0.md reports, from its 218 runs; some optimizers are gone."""
    averages = {}
    for accuracy in ("selected", "second-half"):
        results, _ = read(STUDY, accuracy=accuracy)
        for steps in (1000, 2000):
            table = rows([result for result in results if result.recipe.steps == steps])
            means = {row.key.label: row.cells["average"].mean for row in table}
            averages |= {(accuracy, steps, label): mean and round(mean, 1) for label, mean in means.items()}
    assert len(read(STUDY)[0]) == 218
    expected = {
        ("selected", 2000): {"adam": 83.9, "sam": 85.2, "mecam": 86.8},
        ("second-half", 2000): {"adam": 84.3, "sam": 84.7, "mecam": 86.7},
        ("selected", 1000): {"sagm": 85.1, "gam": 86.3, "coral + mecam": 86.9, "adam + swad": 85.2},
        ("second-half", 1000): {"sagm": 85.6, "gam": 85.2, "coral + mecam": 87.0, "thinmecam (every=3)": 85.0},
    }
    for (accuracy, steps), means in expected.items():
        assert {label: averages[accuracy, steps, label] for label in means} == means
    assert ("selected", 1000, "innermecam") in averages
    assert all(Recipe(**record.recipe).run_id == run_id for run_id, record in records_file.read_records(STUDY).items())
