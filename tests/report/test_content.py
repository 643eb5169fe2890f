"""What the page is made from, read from run folders."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from mecam.data.shapes import shapes
from mecam.recipe import Recipe
from mecam.report import write
from mecam.report.content import Content, gather
from mecam.report.curves import POINTS, curve, schedule
from mecam.report.images import PAIRS, Thumbnails, illustrate, predictions, samples
from mecam.report.measured import SIDE, read_curvature, read_surface
from mecam.report.page import in_script
from mecam.runs import RunError, RunFolder
from tests.report.runs import CLASSES, splits, write_run

DOMAINS = ["art", "cartoon", "photo", "sketch"]


def content_of(folder: RunFolder) -> dict[str, Any]:
    """The predictions of a run whose data is not here."""
    found = predictions(folder, None)
    assert found is not None
    return found.content


def read(out: Path) -> Content:
    return gather(out, title="")


def test_a_curve_is_thinned_and_keeps_its_ends() -> None:
    records = [{"step": step, "splits": splits(["a", "b", "c"], step / 1000)} for step in range(0, 1001, 5)]
    thinned = curve(records, "a")
    assert len(thinned["steps"]) == POINTS
    assert (thinned["steps"][0], thinned["steps"][-1]) == (0, 1000)
    assert thinned["source_accuracy"] == pytest.approx([step / 10 for step in thinned["steps"]])


def test_a_curve_averages_the_sources_and_not_the_target() -> None:
    metrics = {"a in": 0.9, "a out": 0.8, "b in": 0.7, "b out": 0.2, "c in": 0.6, "c out": 0.4}
    record = {"step": 0, "splits": {name: {"accuracy": v, "loss": math.nan} for name, v in metrics.items()}}
    averaged = curve([record], "a")
    assert averaged["source_accuracy"] == pytest.approx([30])
    assert averaged["target_accuracy"] == [90]
    assert averaged["source_loss"] == averaged["target_loss"] == [None]
    renamed = {name.replace("a ", "None "): metrics for name, metrics in record["splits"].items()}  # type: ignore[attr-defined]
    everywhere = curve([{"step": 0, "splits": renamed}], None)
    assert everywhere["source_accuracy"] == [46.67], "a source called None is no target"
    assert everywhere["target_accuracy"] == [None]


def test_a_run_whose_optimizer_is_not_known_here_has_a_schedule() -> None:
    settings = {"rho": 0.2}
    assert schedule(Recipe(steps=8, optimizer="curvemecam", optimizer_settings=settings))["rho"] == [0.2, 0.2]
    assert schedule(Recipe(steps=8, optimizer="curvemecam"))["rho"] is None


def test_a_schedule_keeps_its_ends_and_the_end_of_its_warm_up() -> None:
    rates = schedule(Recipe(steps=1000, lr=0.01, lr_schedule="linear", warmup=33))
    values = dict(zip(rates["steps"], rates["lr"], strict=True))
    assert len(rates["steps"]) <= POINTS + 2
    assert (values[0], values[32], values[33]) == pytest.approx((0.01 / 33, 0.01, 0.01), rel=1e-3)
    assert values[1000] == pytest.approx(0.01 / 968, rel=1e-3)
    assert rates["rho"] is None


def test_what_is_constant_takes_two_points() -> None:
    constant = schedule(Recipe(steps=1000, lr=0.01, optimizer="mecam"))
    assert constant == {"steps": [0, 1000], "lr": [0.01, 0.01], "rho": [0.1, 0.1]}
    falling = schedule(Recipe(steps=8, optimizer="mecam", rho_schedule="inverse_sqrt"))
    assert falling["rho"] == pytest.approx([0.1 / math.sqrt(step + 1) for step in range(9)], rel=1e-3)


def test_runs_of_a_row_are_those_behind_its_cells(tmp_path: Path) -> None:
    for seed in (0, 1):
        for target in ("art", "photo"):
            for rho, accuracy in ((0.1, 0.5), (0.2, 0.7)):
                values: dict[str, Any] = {"optimizer": "sam", "optimizer_settings": {"rho": rho}}
                write_run(tmp_path, accuracy + seed / 10, domains=DOMAINS, target=target, seed=seed, **values)
    content = read(tmp_path)
    assert [row["settings"] for row in content.rows] == ["rho=0.1", "rho=0.2"]
    for row in content.rows:
        behind = [content.runs[place] for place in row["runs"]]
        assert [(run["target"], run["seed"]) for run in behind] == [("art", 0), ("art", 1), ("photo", 0), ("photo", 1)]
        assert sum(run["accuracy"] for run in behind) / 4 == pytest.approx(row["cells"][-1].mean)
    assert [[entry.values for entry in sweep.rows] for sweep in content.rho] == [[[0.1], [0.2]]]


def test_a_run_at_the_default_is_a_point_of_the_sweep(tmp_path: Path) -> None:
    write_run(tmp_path, 0.5, domains=DOMAINS, target="art", optimizer="sam")
    write_run(tmp_path, 0.5, domains=DOMAINS, target="art", optimizer="sam", optimizer_settings={"rho": 7.0})
    write_run(tmp_path, 0.5, domains=DOMAINS, target="art", optimizer="sam", optimizer_settings={"rho": 8.0}, lr=1.0)
    (sweep,) = read(tmp_path).rho
    assert sorted(entry.values[0] for entry in sweep.rows) == [0.05, 7.0]  # the third differs in more than rho


def test_mistakes_are_the_surest_ones_with_names_from_the_weights(tmp_path: Path) -> None:
    predicted = [(0, 1, 0.5), (0, 0, 0.99), (1, 2, 0.9), (2, 1, 0.7)]
    folder = write_run(tmp_path, 0.25, domains=DOMAINS, target="art", predicted=predicted)
    summary = content_of(folder)
    assert summary["classes"] == CLASSES
    assert [(m["label"], m["predicted"], m["confidence"], m["image"]) for m in summary["mistakes"]] == [
        (1, 2, 0.9, None), (2, 1, 0.7, None), (0, 1, 0.5, None),
    ]  # fmt: skip
    assert sorted(summary["counts"]) == [(0, 0, 1), (0, 1, 1), (1, 2, 1), (2, 1, 1)]


def test_names_are_not_taken_from_weights_that_changed(tmp_path: Path) -> None:
    folder = write_run(tmp_path, 0.25, domains=DOMAINS, target="art", predicted=[(0, 1, 0.5)])
    folder.model_file.write_bytes(folder.model_file.read_bytes().replace(b"bold", b"told"))
    with pytest.raises(RunError, match=r"model\.safetensors is damaged"):
        predictions(folder, None)
    folder.model_file.unlink()
    summary = content_of(folder)
    assert summary["classes"] == ["class 0", "class 1"]


def test_of_many_classes_only_the_confusions_are_kept(tmp_path: Path) -> None:
    predicted = [(label, (label + 1) % 50, 0.5) for label in range(50)] + [(7, 8, 0.5)] + [(3, 3, 0.5)] * 9
    classes = [str(number) for number in range(50)]
    folder = write_run(tmp_path, 0.25, domains=DOMAINS, target="art", predicted=predicted, classes=classes)
    summary = content_of(folder)
    assert not summary["whole"]
    assert len(summary["counts"]) == PAIRS
    assert summary["counts"][0] == (7, 8, 2)


def test_images_are_shown_only_of_the_data_the_run_saw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MECAM_CACHE", str(tmp_path / "cache"))
    predicted = [(0, 1, 0.5)]
    for seed, fingerprint in ((0, shapes().fingerprint), (1, "another")):
        write_run(tmp_path, 0.5, domains=DOMAINS, target="art", seed=seed, predicted=predicted, fingerprint=fingerprint)
    content = gather(tmp_path, title="")
    mistakes = {run["seed"]: run["predictions"]["mistakes"][0] for run in content.runs}
    names = {seed: (mistake["name"], mistake["image"] is None) for seed, mistake in mistakes.items()}
    assert names == {0: ("art/circle/0000.png", False), 1: ("image 0", True)}


def test_every_mistake_is_listed_up_to_a_limit_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mecam.report.images.MISTAKES", 3)
    predicted = [(0, 1, 0.5), (0, 1, 0.7), (1, 2, 0.9), (2, 1, 0.6), (2, 2, 0.2), (2, 2, 0.25)]
    summary = content_of(write_run(tmp_path, 0.25, domains=DOMAINS, target="art", predicted=predicted))
    assert (summary["images"], summary["wrong"]) == (6, 4)
    assert [mistake["confidence"] for mistake in summary["mistakes"]] == [0.9, 0.7, 0.6]
    assert sum(images for images, _, _ in summary["calibration"]) == 6
    assert summary["calibration"][0] == (2, 0.225, 1.0)


def test_pictures_go_to_the_first_mistakes_of_every_run_before_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mecam.report.images.FIRST", 1)
    data = shapes(per_class=2)
    runs = []
    for seed in (0, 1):
        wrong = [(0, 1, 0.5)] * (1 + seed) + [(0, 1, 0.9)]
        folder = write_run(tmp_path, 0.25, domains=DOMAINS, target="art", seed=seed, predicted=wrong)
        found = predictions(folder, data)
        assert found is not None
        runs.append(found)
    one = Thumbnails()
    one.add(data, *runs[0].places[0])
    illustrate(runs, Thumbnails(most=sum(map(len, one.images)) * 5 // 2))
    shown = [[mistake["image"] is not None for mistake in run.content["mistakes"]] for run in runs]
    assert shown[0][0]
    assert shown[1][0]
    assert not all(shown[1])


def test_thumbnails_are_embedded_once_and_up_to_a_limit() -> None:
    data = shapes(per_class=2)
    thumbnails = Thumbnails(most=20_000)
    domains = samples(data, thumbnails)
    assert samples(data, thumbnails) == domains
    assert [domain["name"] for domain in domains] == list(data.domains)
    assert sum(map(len, thumbnails.images)) <= 20_000
    assert 0 < len(thumbnails.images) < 4 * 7


def test_a_large_surface_is_thinned(tmp_path: Path) -> None:
    side = [float(place) for place in range(200)]
    loss = [[x + 1000 * y for x in side] for y in side]
    loss[0][0] = math.inf
    (tmp_path / "landscape.json").write_text(json.dumps({"split": "art in", "x": side, "y": side, "loss": loss}))
    surface = read_surface(tmp_path, 0)
    assert surface is not None
    assert len(surface["x"]) <= SIDE
    assert surface["holes"] == 1
    for row, y in zip(surface["loss"], surface["y"], strict=True):
        for value, x in zip(row, surface["x"], strict=True):
            assert value is None or value == pytest.approx((x or 0) + 1000 * (y or 0), rel=1e-3)


@pytest.mark.parametrize(
    "values",
    [
        {"split": "art in", "x": [0], "y": [0, 1], "loss": [[1]]},
        {"split": "art in", "x": [0], "y": [0], "loss": [["<b>"]]},
        {"split": "art in", "x": [0], "y": [0], "loss": 3},
        {"split": "art in", "x": [0], "y": [0]},
        [],
    ],
)
def test_a_landscape_of_another_shape_is_named_and_the_rest_shown(tmp_path: Path, values: Any) -> None:
    folder = write_run(tmp_path, 0.5, domains=DOMAINS, target="art")
    (folder.path / "landscape.json").write_text(json.dumps(values))
    content = read(tmp_path)
    assert content.surfaces == []
    assert len(content.rows) == 1
    assert [note for note in content.notes if str(folder.path / "landscape.json") in note]


@pytest.mark.parametrize("rho", [3, [0.1, 0.2], ["<b>"], [None, 0.1, 0.2]])
def test_a_curvature_of_another_shape_is_refused(tmp_path: Path, rho: Any) -> None:
    values = {"split": "a", "loss": 1, "gradient_norm": 1, "rho": rho, "numerator": [1], "curvature": [1]}
    (tmp_path / "curvature.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"curvature\.json has"):
        read_curvature(tmp_path, 0)


def test_damage_is_reported_and_the_rest_shown(tmp_path: Path) -> None:
    for seed in range(4):
        write_run(tmp_path, 0.5, domains=DOMAINS, target="art", seed=seed, predicted=[(0, 1, 0.5)])
    write_run(tmp_path, None, domains=DOMAINS)
    folders = [RunFolder(path) for path in sorted(tmp_path.glob("*-art-*"))]
    folders[0].predictions_file.write_bytes(b"nothing")
    folders[1].records_file.write_text("{\n")
    folders[2].done_file.write_text("{")
    content = read(tmp_path)
    assert len(content.runs) == 3
    assert [any(str(folder.path) in note for note in content.notes) for folder in folders] == [True, True, True, False]
    assert any("1 run has no unseen domain" in note for note in content.notes)


def test_a_missing_figure_has_the_command_for_this_folder(tmp_path: Path) -> None:
    write_run(tmp_path, 0.5, domains=DOMAINS, target="art")
    commands = [figure["command"] for figure in read(tmp_path).figures if "command" in figure]
    assert f"mecam bench recipes/figure_rho.toml --out {tmp_path}" in commands
    assert not any("RESULTS" in command for command in commands)


def test_without_matplotlib_figures_are_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, 0.5, domains=DOMAINS, target="art")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    content = read(tmp_path)
    assert [figure["title"] for figure in content.figures if "image" in figure] == []
    [note] = content.notes
    assert note.startswith("the paper's figures are left out: plots need matplotlib (pip install")


def test_json_stands_safely_in_a_script() -> None:
    value = {"</script><!--": ["\u2028", "&amp;", math.nan, math.inf, "NaN"], "ok": 1.5}
    text = in_script(value)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"</script><!--": ["\u2028", "&amp;", None, None, "NaN"], "ok": 1.5}


def test_equal_runs_give_equal_pages(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", 0.5, domains=DOMAINS, target="art")
    pages = [write(tmp_path / "runs", tmp_path / name).read_bytes() for name in ("one.html", "two.html")]
    assert pages[0] == pages[1]


def test_no_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no folder"):
        write(tmp_path / "nothing", tmp_path / "page.html")
