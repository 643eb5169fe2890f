"""Cells, averages, selection and statistics, against numbers worked out by hand."""

import csv
import io
import json
import math
from pathlib import Path
from typing import get_args

import pytest

from mecam.benchmark.render import FORMS, render
from mecam.benchmark.render import table as text_of
from mecam.benchmark.results import Result, read
from mecam.benchmark.tables import AVERAGE, Select, difference, rank_averages, rows
from mecam.recipe import Recipe
from mecam.storage.checksums import seal
from tests.benchmark.folders import write_done, write_run


def fill(out: Path) -> None:
    for optimizer, table in {
        "adam": {("art", 0): 0.5, ("art", 1): 0.7, ("photo", 0): 0.6, ("photo", 1): 0.6},
        "mecam": {("art", 0): 0.6, ("art", 1): 0.7, ("photo", 0): 0.8, ("photo", 1): 0.7},
    }.items():
        for (target, seed), accuracy in table.items():
            write_run(out, accuracy, optimizer=optimizer, target=target, seed=seed)


def test_cells_and_the_average_of_trials(tmp_path: Path) -> None:
    fill(tmp_path)
    results, problems = read(tmp_path)
    assert problems == []
    adam, mecam = rows(results)
    assert adam.key.label == "adam"
    assert adam.cells["art"].mean == pytest.approx(60)
    assert adam.cells["art"].spread == pytest.approx(10 / math.sqrt(2))  # std with ddof 0 is 10, two trials
    assert rows(results, spread="std")[0].cells["art"].spread == pytest.approx(10)
    # two trials 20 apart: 12.706 is Student's t with one degree of freedom
    assert rows(results, spread="interval")[0].cells["art"].spread == pytest.approx(12.7062 * 10, rel=1e-5)
    # inside trials: (50 + 60) / 2 = 55, (70 + 60) / 2 = 65
    assert (adam.cells[AVERAGE].mean, adam.cells[AVERAGE].spread) == (
        pytest.approx(60),
        pytest.approx(5 / math.sqrt(2)),
    )
    assert (mecam.cells[AVERAGE].runs, mecam.cells[AVERAGE].missing) == (4, 0)


def test_balanced_accuracy_stands_beside_the_accuracy_where_they_differ(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path, 0.8, target="art", seed=seed, recall=(1.0, 0.2 * seed, None))
        write_run(tmp_path, 0.6, target="photo", seed=seed, recall=(0.7, 0.5, 0.6))
    (row,) = rows(read(tmp_path)[0])
    assert [row.cells[name].balanced for name in ("art", "photo", AVERAGE)] == pytest.approx([55, 60, 57.5])
    text, problems = text_of(tmp_path)
    assert "Column balanced: the average of the mean accuracy over classes." in text
    head, line = (line.split() for line in text.splitlines()[-2:])
    assert (head, line[-3:]) == (["art", "photo", "average", "balanced", "rank", "runs"], ["57.5", "1.0", "4"])
    guess = "2 runs predict little more than the most frequent class: their balanced accuracy is about that of "
    guess += "guessing ("
    assert guess.replace("2", "1") in problems[-1]
    assert "80.0 %, balanced 50.0 %). See --balanced" in problems[-1]
    (balanced,) = rows(read(tmp_path, accuracy="balanced")[0])
    assert [cell.mean for cell in balanced.cells.values()] == pytest.approx([55, 60, 57.5])
    assert "Accuracy of a run: balanced, the mean over classes." in text_of(tmp_path, accuracy="balanced")[0]
    records = json.loads(text_of(tmp_path, form="json")[0])
    assert [record["balanced"] for record in records] == pytest.approx([55, 60, 57.5])


def test_balanced_accuracy_of_runs_that_did_not_store_it_is_unknown(tmp_path: Path) -> None:
    write_run(tmp_path, 0.8, target="art", recall=(1.0, 0.6))
    write_run(tmp_path, 0.8, target="photo")
    (row,) = rows(read(tmp_path)[0])
    assert row.cells["art"].balanced is None
    assert "balanced" not in text_of(tmp_path)[0]


def test_paired_differences_and_ranks(tmp_path: Path) -> None:
    fill(tmp_path)
    adam, mecam = rows(read(tmp_path)[0])
    found = difference(mecam, adam)
    assert found is not None
    gaps = [10, 0, 20, 10]  # mean 10, sample standard deviation sqrt(200 / 3), t(0.975, 3) = 3.18245
    half = 3.182446305284263 * math.sqrt(200 / 3) / 2
    assert (found.mean, found.pairs) == (pytest.approx(sum(gaps) / 4), 4)
    assert (found.low, found.high) == (pytest.approx(10 - half), pytest.approx(10 + half))
    assert rank_averages([adam, mecam]) == {adam.key: 2, mecam.key: 1}


@pytest.mark.attack("Non-finite numbers")
def test_a_finished_network_of_nan_is_left_out(tmp_path: Path) -> None:
    """As earlier versions finished it: with the accuracy of predicting the first class everywhere."""
    fill(tmp_path)
    done = write_run(tmp_path, 0.9, optimizer="sam") / "done.json"
    written = json.loads(done.read_text())
    written["result"]["splits"]["photo out"]["loss"] = math.nan
    write_done(done.parent, written["result"])
    text, [problem] = text_of(tmp_path)
    assert "90.0" not in text
    assert "outputs of its network are not finite (NaN or infinity)" in problem


@pytest.mark.attack("What a number means")
def test_one_of_several_folders_of_a_run_is_used(tmp_path: Path) -> None:
    run = write_run(tmp_path, 0.5)
    other = write_run(tmp_path / "elsewhere", 0.9)
    other.rename(tmp_path / "zzz")  # the last by name
    text, [problem] = text_of(tmp_path)
    assert "50.0" in text
    assert "90.0" not in text
    assert problem == f"2 folders hold the same run: {run.name} (50.0 %) is used, and not zzz (90.0 %)"
    (run / "done.json").unlink()
    text, [problem] = text_of(tmp_path)
    assert "90.0" in text
    assert problem == f"2 folders hold the same run: zzz (90.0 %) is used, and not {run.name} (not finished)"


def test_one_folder_of_images_by_two_paths_is_one_run(tmp_path: Path) -> None:
    for data, accuracy in (("lab/images", 0.5), ("/mnt/lab/images", 0.9)):
        write_run(tmp_path, accuracy, data=data)
    text, [problem] = text_of(tmp_path)
    assert problem.startswith("2 folders hold the same run: ")
    assert "70.0" not in text


@pytest.mark.attack("What a number means")
def test_any_name_of_a_domain_is_only_a_name(tmp_path: Path) -> None:
    accuracies = {"None": 0.5, "all": 0.6, "average": 0.7, "average (domain)": 0.8, "balanced": 0.9}
    for target, accuracy in accuracies.items():
        write_run(tmp_path, accuracy, target=target)
    write_run(tmp_path, 0.1, target=None)  # has no row
    records = {record["target"]: record for record in json.loads(text_of(tmp_path, form="json")[0])}
    assert {target: (round(record["mean"]), record["runs"]) for target, record in records.items()} == {
        "None": (50, 1),
        "all": (60, 1),
        "average (domain)": (70, 1),
        "average (domain) (domain)": (80, 1),
        "balanced": (90, 1),
        "average": (70, 5),
    }
    for form in ("terminal", "markdown", "latex", "csv"):
        assert "average (domain) (domain)" in text_of(tmp_path, form=form)[0]


def test_missing_runs_are_said(tmp_path: Path) -> None:
    fill(tmp_path)
    write_run(tmp_path, None, optimizer="sam", target="art", seed=0)
    write_run(tmp_path, 0.9, optimizer="sam", target="photo", seed=1)
    sam = rows(read(tmp_path)[0])[2]
    assert (sam.cells["art"].mean, sam.cells["art"].runs, sam.cells["art"].missing) == (None, 0, 2)
    assert (sam.cells["photo"].mean, sam.cells["photo"].spread, sam.cells["photo"].missing) == (
        pytest.approx(90),
        None,
        1,
    )
    assert (sam.cells[AVERAGE].mean, sam.cells[AVERAGE].missing) == (None, 3)
    assert "90.0 (1 missing)" in render(rows(read(tmp_path)[0]), "terminal")


def test_variants_have_rows_of_their_own_or_are_selected_by_validation(tmp_path: Path) -> None:
    for rho, seed, accuracy, validation in (
        (0.1, 0, 0.4, 0.9),
        (0.1, 1, 0.4, 0.5),
        (0.2, 0, 0.9, 0.6),
        (0.2, 1, 0.8, 0.6),
    ):
        settings = {"optimizer_settings": {"rho": rho}}
        write_run(tmp_path, accuracy, validation=validation, optimizer="sam", seed=seed, **settings)
    results, _ = read(tmp_path)
    assert [row.key.variant for row in rows(results)] == ["rho=0.1", "rho=0.2"]
    shared = rows(results, select="shared")
    assert [(row.key.variant, row.cells["art"].mean) for row in shared] == [("", pytest.approx(40))]  # 0.7 beats 0.6
    assert shared[0].chosen == "rho=0.1"
    assert json.loads(render(shared, "json"))[0]["variant"] == "rho=0.1"
    by_trial = rows(results, select="target")[0]
    assert by_trial.values == {("art", 0): pytest.approx(40), ("art", 1): pytest.approx(80)}


def test_a_row_called_fish_is_fish(tmp_path: Path) -> None:
    for accuracy, values in ((0.5, {}), (0.6, {"optimizer": "adam"}), (0.7, {"optimizer": "mecam"})):
        write_run(tmp_path, accuracy, method="fish", **values)
    write_run(tmp_path, 0.8, method="fish", optimizer="sgd", optimizer_settings={"momentum": 0.9})
    named = {row.key.label: row.cells["art"].mean for row in rows(read(tmp_path)[0])}
    assert named == {
        "fish variant + adam": pytest.approx(60),
        "fish variant + mecam": pytest.approx(70),
        "fish + sgd (momentum=0.0)": pytest.approx(50),
        "fish variant + sgd (momentum=0.9)": pytest.approx(80),
    }
    selected = {row.key.label for row in rows(read(tmp_path)[0], select="shared")}
    assert selected == {"fish variant + adam", "fish variant + mecam", "fish + sgd", "fish variant + sgd"}
    records = json.loads(render(rows(read(tmp_path)[0]), "json"))
    assert {(r["method"], r["optimizer"], r["variant"]) for r in records} == {
        ("fish", "adam", "fish variant"),
        ("fish", "mecam", "fish variant"),
        ("fish", "sgd", "momentum=0.0"),
        ("fish", "sgd", "fish variant, momentum=0.9"),
    }
    text, _ = text_of(tmp_path)
    assert "fish variant: Fish itself takes its outer step by SGD without momentum and weight decay." in text


def test_rows_stand_in_the_order_of_their_settings(tmp_path: Path) -> None:
    for steps in (100, 25, 1000):
        write_run(tmp_path, 0.5, steps=steps)
    assert [row.key.variant for row in rows(read(tmp_path)[0])] == ["steps=25", "steps=100", "steps=1000"]


def test_schedules_have_rows_of_their_own(tmp_path: Path) -> None:
    for name in ("constant", "cosine"):
        write_run(tmp_path, 0.5, lr_schedule=name)
    assert [row.key.variant for row in rows(read(tmp_path)[0])] == ["lr_schedule=constant", "lr_schedule=cosine"]


def test_a_row_that_lacks_a_target_has_no_rank_and_takes_none_away(tmp_path: Path) -> None:
    fill(tmp_path)
    write_run(tmp_path, 0.9, optimizer="sam", target="photo")
    table = rows(read(tmp_path)[0])
    assert {key.label: rank for key, rank in rank_averages(table).items()} == {"adam": 2, "mecam": 1}


def test_runs_on_other_sources_are_rows_of_their_own_and_say_so(tmp_path: Path) -> None:
    write_run(tmp_path, 0.9, validation=0.4, sources="photo,sketch")
    write_run(tmp_path, 0.6, validation=0.8)
    write_run(tmp_path, 0.7, optimizer="mecam")
    expected = {"adam (sources=photo,sketch)": 90, "adam (sources=all)": 60, "mecam (sources=all)": 70}
    for select in get_args(Select):
        found = {row.key.label: row.cells["art"].mean for row in rows(read(tmp_path)[0], select=select)}
        assert found == pytest.approx(expected)


def test_selection_never_reads_the_target(tmp_path: Path) -> None:
    """The target's own held-out part would choose the other one."""
    write_run(tmp_path, 0.1, validation=0.8, optimizer="sam", optimizer_settings={"rho": 0.1})  # target out: 0.9
    write_run(tmp_path, 0.9, validation=0.81, optimizer="sam", optimizer_settings={"rho": 0.2})  # target out: 0.1
    for select in ("shared", "target"):
        assert rows(read(tmp_path)[0], select=select)[0].cells["art"].mean == pytest.approx(90)


def test_damaged_and_foreign_runs_are_named_and_the_rest_is_tabulated(tmp_path: Path) -> None:
    fill(tmp_path)
    torn = write_run(tmp_path, 0.5, optimizer="sam")
    (torn / "done.json").write_text('{"result": {"target_acc')
    foreign = write_run(tmp_path, 0.5, optimizer="gam")
    values = json.loads((foreign / "run.json").read_text())
    del values["checksum"]
    values["recipe"]["telescope"] = 1
    (foreign / "run.json").write_bytes(seal(values))
    write_done(foreign, json.loads((foreign / "done.json").read_text())["result"])
    empty = write_run(tmp_path, 0.5, optimizer="fad")
    (empty / "done.json").write_text("{}")
    results, problems = read(tmp_path)
    assert len(results) == 8
    assert [str(folder) in " ".join(problems) for folder in (torn, foreign, empty)] == [True] * 3
    assert any("another version of mecam (telescope)" in problem for problem in problems)
    assert any("done.json is damaged" in problem and "to run it again" in problem for problem in problems)


def test_runs_without_a_target_are_no_part_of_a_table(tmp_path: Path) -> None:
    fill(tmp_path)
    write_run(tmp_path, None, target=None, optimizer="gsam")
    assert len(read(tmp_path)[0]) == 8


def test_every_format_holds_every_number(tmp_path: Path) -> None:
    fill(tmp_path)
    table = rows(read(tmp_path)[0])
    for form in ("terminal", "markdown", "latex"):
        text = render(table, form, baseline="adam")
        assert "60.0" in text
        assert "+10.0" in text
    records = json.loads(render(table, "json"))
    assert {"data", "target", "method", "optimizer", "averaging", "mean", "spread", "runs"} <= set(records[0])
    lines = list(csv.DictReader(io.StringIO(render(table, "csv"))))
    assert [line["target"] for line in lines] == ["art", "photo", "average"] * 2
    assert float(lines[0]["mean"]) == pytest.approx(60)
    assert "**70.0" in render(table, "markdown")
    assert r"\textbf{70.0" in render(table, "latex")


def test_the_best_is_marked_among_several_rows_and_the_mark_is_explained(tmp_path: Path) -> None:
    fill(tmp_path)
    table = rows(read(tmp_path)[0])
    text = render(table, "terminal")
    assert text.count("*") == 4  # mecam's two cells and its average, and what they mean
    assert text.endswith("\n\n*: the best of our rows in its column, to one decimal.")
    alone = {form: render(table[:1], form) for form in ("terminal", "markdown", "latex")}
    assert "*" not in alone["terminal"] + alone["markdown"]
    assert "textbf" not in alone["latex"]


def test_names_do_not_end_a_cell_of_markdown(tmp_path: Path) -> None:
    write_run(tmp_path, 0.5, data="/x/a|b", target="c|d")
    write_run(tmp_path, 0.6, target="art")
    text = render(rows(read(tmp_path)[0]), "markdown")
    heads = {r"### a\|b", r"|  | c\|d | average | rank | runs |", r"|  | a\|b | shapes | average |"}
    assert heads <= set(text.splitlines())


def test_ranks_and_differences_as_data(tmp_path: Path) -> None:
    fill(tmp_path)
    table = rows(read(tmp_path)[0])
    found = {(r["optimizer"], r["target"]): r for r in json.loads(render(table, "json", baseline="adam"))}
    assert (found["adam", "average"]["rank"], found["mecam", "average"]["rank"]) == (2, 1)
    assert found["mecam", "average"]["difference"] == pytest.approx(vars(difference(table[1], table[0])))
    assert (found["mecam", "art"]["rank"], found["mecam", "art"]["difference"]) == (None, None)
    lines = list(csv.DictReader(io.StringIO(render(table, "csv", baseline="adam"))))
    assert [line["difference mean"] for line in lines[:5]] == ["", "", "0.0", "", ""]
    assert (float(lines[5]["difference mean"]), lines[5]["difference pairs"]) == (pytest.approx(10), "4")


def test_a_baseline_may_be_missing_in_one_of_several_data_sets(tmp_path: Path) -> None:
    fill(tmp_path)
    write_run(tmp_path, 0.3, data="/x/PACS", optimizer="mecam")
    found = json.loads(render(rows(read(tmp_path)[0]), "json", baseline="adam"))
    assert [r["data"] for r in found if r["difference"] is not None] == ["shapes"] * 2
    assert "minus adam" in render(rows(read(tmp_path)[0]), "terminal", baseline="adam")


def test_a_run_without_held_out_images_has_no_validation(tmp_path: Path) -> None:
    done = write_run(tmp_path, 0.5, holdout=0.0, selection="last") / "done.json"
    values = json.loads(done.read_text())
    values["result"]["splits"] = {"art in": {"accuracy": 0.5}}
    write_done(done.parent, values["result"])
    [result], problems = read(tmp_path)
    assert (result.accuracy, result.validation, problems) == (50, None, [])


def test_unknown_words_are_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    table = rows(read(tmp_path)[0])
    with pytest.raises(ValueError, match=f"there is no format 'pdf'; there are {', '.join(FORMS)}"):
        render(table, "pdf")
    with pytest.raises(ValueError, match="no row 'sgd' to compare with; there are adam, mecam"):
        render(table, "terminal", baseline="sgd")


def test_folders_of_one_name_are_one_data_set_only_if_they_hold_the_same(tmp_path: Path) -> None:
    write_run(tmp_path / "same", 0.5, data="lab/images", target="art")
    write_run(tmp_path / "same", 0.7, data="/disk/lab/images", target="photo")
    assert [row.key.data for row in rows(read(tmp_path / "same")[0])] == ["images"]
    write_run(tmp_path / "other", 0.5, data="lab/images", images="these")
    write_run(tmp_path / "other", 0.7, data="field/images", images="those")
    found = {row.key.data: row.cells["art"].mean for row in rows(read(tmp_path / "other")[0])}
    assert found == {"lab/images": 50, "field/images": 70}


def test_a_folder_called_as_the_embedded_set_is_told_apart_from_it(tmp_path: Path) -> None:
    write_run(tmp_path, 0.5, images="drawn")
    write_run(tmp_path, 0.7, data="shapes/", images="mine")
    found = {row.key.data: row.cells["art"].mean for row in rows(read(tmp_path)[0])}
    assert found == {"shapes": 50, "./shapes": 70}


def test_several_data_sets_get_a_table_across(tmp_path: Path) -> None:
    fill(tmp_path)
    write_run(tmp_path, 0.3, data="/x/PACS", optimizer="adam")
    text = render(rows(read(tmp_path)[0]), "terminal")
    assert "all data sets" in text
    assert "45.0*" in text  # (60 + 30) / 2; no other row has both


def test_heads_on_frozen_features_have_rows_of_their_own(tmp_path: Path) -> None:
    write_run(tmp_path, 0.8)
    write_run(tmp_path, 0.7, trainable="head")
    results, _ = read(tmp_path)
    assert [row.key.label for row in rows(results)] == ["adam", "adam (head)"]


def test_runs_from_the_head_of_their_own_target_are_one_row() -> None:
    """As mecam fit fine-tunes them; other weights are another setting."""

    def result(target: str, weights: str) -> Result:
        return Result(Path(target + weights), Recipe(target=target, weights=weights), 50.0, 60.0)

    heads = [result(t, f"runs/shapes-{t}-erm-adam-none-seed0-{t}/model.safetensors") for t in ("art", "photo")]
    (row,) = rows(heads)
    assert set(row.values) == {("art", 0), ("photo", 0)}
    crossed = result("photo", "runs/shapes-art-erm-adam-none-seed0-art/model.safetensors")
    assert len(rows([heads[0], crossed])) == 2
