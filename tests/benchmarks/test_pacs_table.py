"""The study on PACS: order of its runs, what the search chooses, and tables against numbers worked out by hand."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mecam.recipe import Recipe

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import pacs_plan
import pacs_table as tables

PHASES = {phase: pacs_plan.planned(phase, tables.DOMAINS) for phase in pacs_plan.PHASES}


def record(recipe: Recipe, accuracy: float, validation: float = 0.9) -> dict[str, Any]:
    """The best step is the 100th; evaluations at half of the run and at its end."""
    later = [[step, validation - 0.1, 0.3, accuracy] for step in (recipe.steps // 2, recipe.steps)]
    return {
        "recipe": {"target": recipe.target, "steps": recipe.steps},
        "selected_step": 100,
        "target_accuracy": accuracy,
        "splits": {},
        "history": [[0, 0.5, 1.0, 0.1], [100, validation, 0.3, accuracy], *later],
        "seconds": 40.0 if recipe.optimizer == "adam" else 80.0,
        "machine": "one",
        "versions": "some",
        "commit": "abc",
    }


def of(phase: str, optimizer: str) -> list[Recipe]:
    plain = [recipe for recipe in PHASES[phase] if recipe.method == "erm" and recipe.averaging == "none"]
    return [recipe for recipe in plain if recipe.optimizer == optimizer]


def table(lines: list[str]) -> dict[str, list[str]]:
    found = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    return {name: cells for name, *cells in found[2:]}


def main_records() -> pacs_plan.Records:
    """ERM has 80 % everywhere; MeCAM is better by 1, 2 and 3 points with the three seeds."""
    records = {recipe.run_id: record(recipe, 0.8) for recipe in of("main", "adam")}
    return records | {recipe.run_id: record(recipe, 0.81 + recipe.seed / 100) for recipe in of("main", "mecam")}


def test_what_is_there_at_any_time_is_balanced() -> None:
    main = PHASES["main"]
    assert [recipe.optimizer for recipe in main[:12]] == ["adam"] * 4 + ["sam"] * 4 + ["mecam"] * 4
    assert [recipe.seed for recipe in main[:36]] == [0] * 12 + [1] * 12 + [2] * 12
    assert {recipe.optimizer for recipe in main[36:56]} == {"sagm", "fad", "crsam", "fsam", "gam"}
    assert {recipe.seed for recipe in main[36:56]} == {0}
    assert {recipe.method for recipe in main[:96]} == {"erm"}
    assert {recipe.target for recipe in main[:4]} == set(tables.TARGETS)


def test_every_optimizer_has_as_many_points_in_the_search() -> None:
    points = pacs_plan.searched({}, PHASES["search"])
    assert set(points) == {recipe.optimizer for recipe in PHASES["main"]}
    for optimizer, of_it in points.items():
        assert {point["lr"] for point, _ in of_it} >= {3e-5, 1e-4, 3e-4}, optimizer
        assert len(of_it) == 4


def test_the_search_looks_at_source_validation_alone() -> None:
    reached = {3e-5: 0.90, 1e-4: 0.94, 3e-4: 0.92, 1e-3: 0.5}
    found = of("search", "adam")
    records = {recipe.run_id: record(recipe, 1 - reached[recipe.lr], reached[recipe.lr]) for recipe in found}
    assert pacs_plan.chosen(records, PHASES["search"]) == {"adam": {"lr": 1e-4, "optimizer_settings": {}}}
    lines = tables.search_table(records, PHASES["search"])
    assert "| ERM | 0.0001 |  | 94.00 | chosen |" in lines
    assert "| ERM | 0.0003 |  | 92.00 |  |" in lines
    assert sum("chosen" in line for line in lines) == 1
    differing = pacs_plan.departures(of("main", "adam"), {"adam": {"lr": 1.0}})
    assert differing == [f"adam: lr is {of('main', 'adam')[0].lr}, the search chose 1.0"]
    choice = {"mecam": {"lr": 0.5, "optimizer_settings": {"rho": 0.3}}}
    by_choice = pacs_plan.planned("main", tables.DOMAINS, choice=choice)
    assert {recipe.lr for recipe in by_choice if recipe.optimizer == "mecam"} == {0.5}
    assert {recipe.lr for recipe in by_choice if recipe.optimizer == "sam"} == {of("main", "sam")[0].lr}
    del records[found[0].run_id]
    assert pacs_plan.chosen(records, PHASES["search"]) == {}  # one target of it is missing


def test_validation_of_averaged_weights_is_that_of_the_end() -> None:
    splits = {"art out": [0.8, 1.0], "photo out": [0.9, 1.0], "sketch out": [0.1, 1.0], "sketch in": [0.2, 1.0]}
    swad = {"selected_step": None, "history": [[0, 0.3, 1.0, 0.2]], "splits": splits, "recipe": {"target": "sketch"}}
    assert pacs_plan.validation(swad) == pytest.approx(0.85)


def test_accuracies_and_differences() -> None:
    found = tables.tables(main_records(), PHASES)
    main = table(found["main"])
    assert main["ERM"][:6] == ["80.0 ± 0.0"] * 5 + ["3"]
    # 81, 82, 83: a standard deviation (ddof 0) of 0.816 over the root of 3
    assert main["MeCAM"][:7] == ["82.0 ± 0.5"] * 5 + ["3", "2.00"]
    assert main["MeCAM"][7] == "88.3"
    assert set(main) == {"ERM", "MeCAM"}
    assert found["main"][-1].startswith("Not run at this length: SAM; SAGM; ")
    # twelve pairs, four each of 1, 2, 3: s = sqrt(8/11), t(11) = 2.200985; three seeds: s = 1, t(2) = 4.302653
    assert table(found["differences"])["MeCAM"] == [
        "+2.00 [+1.46, +2.54]", "12", "+2.00 [-0.48, +4.48]", "not run", "0", "-",
    ]  # fmt: skip
    assert found["account"][1] == "- recipes/pacs_main.toml: 24 of 144 runs, 24 minutes of training"
    half = "- recipes/pacs_main.toml with steps = 1000: 0 of 144 runs, 0 minutes of training; "
    assert found["account"][2] == half + "24 more are held by longer runs"
    assert len([line for line in found["runs"] if line.startswith("| MeCAM | ")]) == 3
    assert "| MeCAM | 2 | 83.00 | 83.00 | 83.00 | 83.00 | 100, 100, 100, 100 |" in found["runs"]


def test_a_seed_without_a_target_counts_in_no_average() -> None:
    records = main_records()
    gone = next(recipe for recipe in of("main", "mecam") if (recipe.seed, recipe.target) == (2, "photo"))
    del records[gone.run_id]
    found = tables.tables(records, PHASES)
    assert table(found["main"])["MeCAM"][:6] == [
        "82.0 ± 0.5 (3)", "82.0 ± 0.5 (3)", "81.5 ± 0.4", "82.0 ± 0.5 (3)", "81.5 ± 0.4", "2",
    ]  # fmt: skip
    assert table(found["differences"])["MeCAM"][1:3] == ["11", "-"]
    assert "| MeCAM | 2 | 83.00 | 83.00 | not run | 83.00 | 100, 100, -, 100 |" in found["runs"]


def test_a_row_without_a_whole_seed_has_no_average() -> None:
    two = [r for r in of("main", "sagm") if r.seed == 0 and r.target in ("photo", "sketch")]
    records = main_records() | {recipe.run_id: record(recipe, 0.7) for recipe in two}
    found = tables.tables(records, PHASES)
    assert table(found["main"])["SAGM"][:6] == ["not run", "not run", "70.0 (1)", "70.0 (1)", "-", "0"]
    assert table(found["differences"])["SAGM"][:2] == ["-10.00 [-10.00, -10.00]", "2"]


HISTORY = [[0, 0.5, 1.0, 0.10], [100, 0.7, 1.0, 0.20], [200, 0.7, 1.0, 0.30], [300, 0.9, 1.0, 0.25]]


def test_a_run_cut_off_is_the_shorter_run() -> None:
    whole = {
        "recipe": {"steps": 300, "lr": 0.1},
        "selected_step": 300,
        "target_accuracy": 0.25,
        "history": HISTORY,
        "seconds": 60.0,
        "commit": "abc",
        "splits": {"photo in": [0.25, 1.0]},
        "curvature": {},
        "curvature_seconds": 9.0,
    }
    assert (
        pacs_plan.cut(whole, 200)
        == {
            "recipe": {"steps": 200, "lr": 0.1},
            "selected_step": 100,  # the first of equals
            "target_accuracy": 0.20,
            "history": HISTORY[:3],
            "seconds": 40.0,
            "commit": "abc",
        }
    )
    assert pacs_plan.cut(whole, 150) is None  # nobody looked there
    assert pacs_plan.cut(whole, 400) is None
    better = whole | {"selected_step": 200, "history": HISTORY[:3]}  # by less than rounding kept
    shorter = pacs_plan.cut(better, 200)
    assert shorter is not None
    assert shorter["selected_step"] == 200


def test_a_longer_run_stands_for_a_shorter_one_of_the_same_recipe() -> None:
    long = next(recipe for recipe in of("main", "mecam") if recipe.seed == 0)
    short, records = replace(long, steps=1000), {long.run_id: record(long, 0.8)}
    assert pacs_plan.known(long, records) == records[long.run_id]
    assert pacs_plan.known(short, records) == pacs_plan.cut(records[long.run_id], 1000)
    assert pacs_plan.held([long, short], records) == [short]
    own = {**records, short.run_id: record(short, 0.7)}
    assert pacs_plan.known(short, own) == own[short.run_id]
    assert pacs_plan.held([long, short], own) == []
    for other in (replace(long, steps=5000), replace(short, lr=1.0), replace(short, seed=1), replace(short, steps=900)):
        assert pacs_plan.known(other, records) is None
    lengths = ({"lr_schedule": "cosine"}, {"rho_schedule": "linear"})
    for change in ({"averaging": "swad"}, {"method": "coral"}, {"selection": "last"}, *lengths):
        of_its_kind = replace(long, **change)  # its length may be in what it does
        known = {of_its_kind.run_id: record(of_its_kind, 0.8)}
        assert pacs_plan.known(replace(of_its_kind, steps=1000), known) is None
    decaying = replace(long, lr_schedule="inverse_sqrt", warmup=100)  # whatever its length
    known = {decaying.run_id: record(decaying, 0.8)}
    assert pacs_plan.known(replace(decaying, steps=1000), known) is not None


@pytest.mark.parametrize("phase", ["half", "parts", "beyond"])
def test_references_are_the_first_half_of_the_main_table_s_runs(phase: str) -> None:
    assert {recipe.steps for recipe in PHASES[phase]} == {1000}
    for optimizer in ("adam", "mecam"):
        shorter = {replace(recipe, steps=1000).run_id for recipe in of("main", optimizer)}
        assert shorter <= {recipe.run_id for recipe in PHASES[phase]}


def test_parts_are_compared_with_references_cut_off_where_they_end() -> None:
    # at 1,000 steps ERM selects 70 % and MeCAM 75 %, and the second half has 2 points less; what comes later is better
    records = {}
    for optimizer, accuracy in (("adam", 0.70), ("mecam", 0.75)):
        for recipe in of("main", optimizer):
            steps = [
                [0, 0.1, 2.0, 0.1],
                [500, 0.8, 0.3, accuracy],
                [1000, 0.7, 0.3, accuracy - 0.04],
                [2000, 0.9, 0.3, 0.99],
            ]
            records[recipe.run_id] = record(recipe, 0.99) | {"selected_step": 2000, "history": steps}
    plain = [
        r for r in PHASES["parts"] if r.optimizer_settings.get("rho") == 0.0 and (r.seed, r.target) != (2, "photo")
    ]
    for recipe in plain:
        records[recipe.run_id] = record(recipe, 0.73) | {"seconds": 30.0}
    found = tables.tables(records, PHASES)
    parts = table(found["parts"])
    assert parts["ERM"][4:] == ["70.0 ± 0.0", "3", "-5.00 [-5.00, -5.00]", "-5.00 [-5.00, -5.00]", "12", "1.00"]
    assert parts["MeCAM"][4:] == ["75.0 ± 0.0", "3", "", "", "", "2.00"]
    # 73 against 75, and in the second half against (75 + 71) / 2; 30 s against half of ERM's 40
    assert parts["rho 0.0"] == [
        "73.0 ± 0.0 (3)", "73.0 ± 0.0 (3)", "73.0 ± 0.0", "73.0 ± 0.0 (3)", "73.0 ± 0.0", "2",
        "-2.00 [-2.00, -2.00]", "+0.00 [+0.00, +0.00]", "11", "1.50",
    ]  # fmt: skip
    assert {name: cells for name, cells in table(found["beyond"]).items() if cells[0] != "not run"} == {
        name: parts[name] for name in ("ERM", "MeCAM")
    }
    assert table(found["main"])["MeCAM"][4] == "99.0 ± 0.0"
    assert set(table(found["settled"])) == {"ERM", "MeCAM"}
    settled = table(found["settled parts"])
    assert set(settled) == {"ERM", "MeCAM", "rho 0.0"}
    assert settled["rho 0.0"][6:] == ["+5.00 [+5.00, +5.00]", "11", "+0.00 [+0.00, +0.00]", "11"]
    held = "- recipes/pacs_parts.toml: 11 of 144 runs, 6 minutes of training; 24 more are held by longer runs"
    assert held in found["account"]
    assert "| rho 0.0, 1,000 steps | 1 | 73.00 | 73.00 | 73.00 | 73.00 | 100, 100, 100, 100 |" in found["runs"]


def test_what_a_shorter_run_would_have_selected() -> None:
    long = {"history": HISTORY, "selected_step": 300}
    assert tables.selected_until(long, 50) == 10.0
    assert tables.selected_until(long, 200) == 20.0  # the first of equals
    assert tables.selected_until(long, 300) == 25.0
    assert tables.selected_until(long, 500) is None
    records = {recipe.run_id: record(recipe, 0.8) | long for recipe in of("long", "adam")}
    assert table(tables.steps_table(tables.rows(PHASES["long"], records, tables.name_of)))["ERM"][:4] == [
        "20.0", "20.0", "25.0", "not run",
    ]  # fmt: skip


def test_accuracy_against_steps_is_of_the_targets_that_all_have() -> None:
    long = tables.rows(PHASES["long"], {}, tables.name_of)
    assert table(tables.steps_table(long))["ERM"][0] == "not run"
    records = {
        recipe.run_id: record(recipe, 0.8) | {"history": [[100, 0.5, 0.3, 0.2 if recipe.target == "sketch" else 0.9]]}
        for recipe in PHASES["long"]
        if recipe.target == "sketch" or recipe.optimizer == "sam"
    }
    lines = tables.steps_table(tables.rows(PHASES["long"], records, tables.name_of))
    assert lines[1].startswith("| sketch, steps up to | 100 |")
    assert table(lines)["SAM"][0] == table(lines)["ERM"][0] == "20.0"


def measured(scale: float) -> dict[str, Any]:
    split = {"images": 10, "loss": 0.1, "gradient_norm": 0.2, "C": [scale * rho for rho in (1, 2)], "numerator": [0, 0]}
    spectrum = {"images": 5, "trace": 30 * scale, "eigenvalue": 3 * scale}
    return {"rho": [0.01, 0.05], "train": split, "validation": split, "target": split, "spectrum": spectrum}


def test_curvature_is_compared_where_all_methods_have_it() -> None:
    records = {recipe.run_id: record(recipe, 0.8) for name in ("adam", "mecam") for recipe in of("half", name)}
    for recipe in of("half", "adam"):
        records[recipe.run_id]["curvature"] = measured(1.0)
    for recipe in of("half", "mecam"):
        if recipe.seed == 0 and recipe.target != "photo":
            records[recipe.run_id]["curvature"] = measured({"sketch": 4.0}.get(str(recipe.target), 0.4))
    lines = tables.tables(records, PHASES)["curvature"]
    assert lines[0].startswith("Of seed 0 art_painting, seed 0 cartoon, seed 0 sketch. In brackets ")
    # MeCAM: 0.4, 0.4 and 4 times ERM's
    assert "| ERM | 1 (1) | 2 (1) |" in lines
    assert "| MeCAM | 1.6 (2) | 3.2 (2) |" in lines
    assert "| SAM | not run | not run |" in lines
    assert "| MeCAM | 4.8 | 48 | 0.2 | 0.1 |" in lines
    assert "| MeCAM | 3.0e-4 | 7.5e-3 | 2.9e-2 | 1.2e-1 | 2.5 |" in lines  # the paper's
    for recipe in of("half", "mecam"):  # of one run alone, without its spectrum
        if recipe.target != "cartoon":
            records[recipe.run_id].pop("curvature", None)
        else:
            records[recipe.run_id].get("curvature", {}).pop("spectrum", None)
    lines = tables.tables(records, PHASES)["curvature"]
    assert lines[0] == "Of seed 0 cartoon."
    assert "| MeCAM | 0.4 | 0.8 |" in lines
    assert "C of ERM, run by run, on the unseen target split:" in lines  # which has more than that one
    assert "| seed 2 sketch | ERM | 1 | 2 | 0.2 | 0.1 | 3 | 30 |" in lines
    assert "| MeCAM | not run | not run | 0.2 | 0.1 |" in lines


def test_time_is_compared_with_erm_s_in_the_same_sitting() -> None:
    records = main_records()
    for recipe in of("main", "adam"):
        records[recipe.run_id] |= {"seconds": 60.0, "commit": "later"} if recipe.seed else {}
    seconds = [(90.0, "abc"), (150.0, "later"), (120.0, "unknown")]  # ERM: 40, 60, not there
    for recipe in of("main", "mecam"):
        taken, commit = seconds[recipe.seed]
        records[recipe.run_id] |= {"seconds": taken, "commit": commit}
    # 90 / 40 four times, 150 / 60 four times
    assert table(tables.tables(records, PHASES)["main"])["MeCAM"][6] == "2.38"
    for recipe in of("main", "mecam"):
        if recipe.seed == 1:
            records[recipe.run_id]["disturbed"] = "by another run"
    assert table(tables.tables(records, PHASES)["main"])["MeCAM"][6] == "2.25"


def test_runs_that_were_made_twice_are_shown_side_by_side() -> None:
    records = main_records()
    short = next(recipe for recipe in of("half", "mecam") if (recipe.seed, recipe.target) == (1, "photo"))
    records[short.run_id] = {**record(short, 0.7), "commit": "later"}
    same = next(recipe for recipe in of("half", "adam") if (recipe.seed, recipe.target) == (0, "photo"))
    held = pacs_plan.from_longer(same, records)
    assert held is not None
    records[same.run_id] = held
    lines = tables.tables(records, PHASES)["repeats"]
    assert lines[0] == "At one commit: 1 runs, 1 of which agree in every digit of every evaluation."
    assert lines[-1] == "| MeCAM | 1000 | 1 | photo | 82.0 | 70.0 | 82.0 | 70.0 |"
    assert sum(line.startswith(("| MeCAM", "| ERM")) for line in lines) == 1


def test_words_around_the_tables_stay() -> None:
    page = "# PACS\n\nBefore.\n\n<!-- begin main -->\nold\n<!-- end main -->\n\nAfter.\n"
    once = tables.put(page, {"main": ["| new |"], "other": ["| more |"]})
    assert once.startswith("# PACS\n\nBefore.\n\n<!-- begin main -->\n\n| new |\n\n<!-- end main -->\n\nAfter.\n")
    assert "<!-- begin other -->\n\n| more |\n\n<!-- end other -->" in once
    assert tables.put(once, {"main": ["| new |"], "other": ["| more |"]}) == once


def test_records_are_a_run_a_line(tmp_path: Path) -> None:
    records = main_records()
    pacs_plan.save(records, tmp_path / "pacs.json")
    assert pacs_plan.load(tmp_path / "pacs.json") == records
    assert len((tmp_path / "pacs.json").read_text().splitlines()) == len(records) + 2
    assert pacs_plan.load(tmp_path / "nothing.json") == {}


def test_the_page_shows_what_is_in_the_records() -> None:
    page = tables.PAGE.read_text(encoding="utf-8")
    found = tables.tables(pacs_plan.load(pacs_plan.RESULTS), PHASES)
    assert set(found) == set(re.findall("<!-- begin (.*) -->", page))
    assert tables.put(page, found) == page, "run python benchmarks/pacs_table.py"


def test_a_second_half_counts_by_all_of_its_evaluations() -> None:
    records = main_records()
    for found in records.values():
        target = found["target_accuracy"]
        found["history"] = [[step, 0.9, 0.3, target + error] for step, error in ((0, 9), (1, 0.02), (2, -0.01))]
    by_label = table(tables.tables(records, PHASES)["settled"])
    assert set(by_label) == {"ERM", "MeCAM"}
    assert by_label["ERM"][4:6] == ["80.5 ± 0.0", "3"]  # 80 + (2 - 1) / 2
    assert by_label["MeCAM"][6:8] == ["+2.00 [+1.46, +2.54]", "12"]
