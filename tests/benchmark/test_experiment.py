"""mecam bench and mecam table as they are typed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from mecam import bench
from mecam.benchmark.experiment import plan_runs
from mecam.cli import app
from mecam.data.domains import UnreadableError
from mecam.methods import METHODS
from mecam.recipe import RecipeError, is_variant
from tests.benchmark.folders import write_run
from tests.data.folders import make_folder

TINY = ["--steps", "2", "--set", "evaluate_every=1", "--set", "batch=4", "--set", "image_size=16"]
pytestmark = pytest.mark.usefixtures("cache")


def mecam(*words: str | Path) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_benchmark_from_the_command_line(tmp_path: Path) -> None:
    words = ["bench", "--optimizer", "adam,sam", "--target", "art,photo", "--seeds", "0", *TINY, "--out", tmp_path]
    plan = mecam(*words, "--dry-run")
    assert plan.exit_code == 0
    assert "4 runs to do, 0 done" in plan.stdout
    assert not list(tmp_path.glob("*/run.json"))
    command = [sys.executable, "-m", "mecam.cli", *map(str, words), "--workers", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert "4 of 4 runs done" in done.stderr
    assert done.stdout.startswith("Accuracy on the unseen domain")
    assert "0 runs to do, 4 done" in mecam(*words, "--dry-run").stdout
    rows = json.loads(mecam("table", tmp_path, "--format", "json").stdout)
    assert {(row["optimizer"], row["target"]) for row in rows} == {
        (optimizer, target) for optimizer in ("adam", "sam") for target in ("art", "photo", "average")
    }
    assert (tmp_path / "bench.log").read_text().count("is done") == 4
    tiny = TINY[3::2]
    again = bench(optimizer=["adam", "sam"], target="art,photo", seeds=0, steps=2, set=tiny, out=tmp_path)
    assert (again.runs, again.before, again.done) == (4, 4, [])


def test_a_setting_is_planned_for_the_optimizers_that_have_it(tmp_path: Path) -> None:
    def planned(file: Path | None = None, optimizer: str | None = None, *assignments: str) -> list[str]:
        found = plan_runs(file, {"target": "art", "seed": "0", "optimizer": optimizer}, assignments)
        return [recipe.run_id for recipe in found]

    sweep = "optimizer_settings.rho=[0.05,0.1]"
    by_words = planned(None, "adam,mecam", sweep)
    assert [run_id.split("-")[3] for run_id in by_words] == ["adam", "mecam", "mecam"]
    file = tmp_path / "one.toml"
    file.write_text('[[runs]]\noptimizer = ["adam", "mecam"]\noptimizer_settings = { rho = [0.05, 0.1] }\n')
    assert planned(file) == by_words
    file.write_text('[[runs]]\noptimizer = "adam"\n[[runs]]\noptimizer = "mecam"\n')
    assert planned(file, None, sweep) == by_words


@pytest.mark.usefixtures("in_process")
def test_unreadable_images_are_refused_or_left_out_as_asked(tmp_path: Path) -> None:
    data = make_folder(tmp_path / "data", each=4)
    (data / "art" / "cat" / "broken.png").write_bytes(b"no image")
    words = ["bench", "--data", data, "--target", "art", "--seeds", "0", *TINY, "--out", tmp_path / "out"]
    words += ["--backbone", "resnet8", "--workers", "1", "--device", "cpu"]
    assert mecam(*words).exit_code == 2
    done = mecam(*words, "--skip-unreadable")
    assert done.exit_code == 0, done.stderr
    assert done.stderr.startswith("mecam: skipped: art/cat/broken.png")
    assert "0 runs to do, 1 done" in mecam(*words, "--skip-unreadable", "--dry-run").stdout
    settings: dict[str, Any] = {"data": str(data), "target": "photo", "seeds": 0, "steps": 2, "backbone": "resnet8"}
    with pytest.raises(UnreadableError, match="broken"):
        bench(**settings, set=TINY[3::2], out=tmp_path / "out")
    again = bench(**settings, set=TINY[3::2], out=tmp_path / "out", workers=1, device="cpu", skip_unreadable=True)
    assert (len(again.done), again.failed) == (1, {})


def test_all_methods_under_one_optimizer_or_their_own() -> None:
    """Fish brings the optimizer it is defined with, unless another one is asked for."""
    words: dict[str, Any] = {"method": "all", "target": "art", "seed": 0}
    under_adam = {r.method: r for r in plan_runs(None, {**words, "optimizer": "adam"})}
    assert {(r.method, r.optimizer) for r in under_adam.values()} == {(name, "adam") for name in METHODS}
    assert [name for name, recipe in under_adam.items() if is_variant(recipe)] == ["fish"]
    own = {r.method: r for r in plan_runs(None, words)}
    assert {name: r.optimizer for name, r in own.items() if r.optimizer != "adam"} == {"fish": "sgd"}
    assert (own["fish"].lr, own["fish"].method_settings) == (0.5, {"inner_lr": 3e-3})
    assert not any(map(is_variant, own.values()))


def test_settings_of_the_optimizer_that_a_method_brings() -> None:
    words: dict[str, Any] = {"target": "art", "seed": 0}
    [fish] = plan_runs(None, {**words, "method": "fish"}, ["optimizer_settings.momentum=0.9"])
    assert (fish.optimizer, fish.optimizer_settings["momentum"]) == ("sgd", 0.9)
    erm, fish = plan_runs(None, {**words, "method": "erm,fish"}, ["optimizer_settings.eps=1e-6"])
    assert (erm.optimizer_settings, "eps" in fish.optimizer_settings) == ({"eps": 1e-6}, False)
    with pytest.raises(RecipeError, match="sgd has no setting 'eps'"):
        plan_runs(None, {**words, "method": "fish"}, ["optimizer_settings.eps=1e-6"])


@pytest.mark.usefixtures("in_process")
def test_a_failed_run_is_named_with_its_log_and_the_exit_code_says_so(tmp_path: Path) -> None:
    words = ["bench", "--optimizer", "adam", "--target", "art", "--seeds", "0", *TINY, "--out", str(tmp_path)]
    words += ["--backbone", "lite0", "--set", "weights=nowhere.pth"]
    done = mecam(*words)
    assert done.exit_code == 1
    assert "shapes-art-erm-adam-none-seed0" in done.stderr
    assert "nowhere.pth" in done.stderr
    assert "1 of 1 runs failed" in done.stderr


def test_a_table_of_one_experiment_in_a_folder_of_several(tmp_path: Path) -> None:
    write_run(tmp_path, 0.5, optimizer="sam", steps=100, evaluate_every=50)
    write_run(tmp_path, 0.7, optimizer="adam", steps=100, evaluate_every=50)
    file = tmp_path / "one.toml"
    file.write_text('[[runs]]\noptimizer = "sam"\n[small]\nseed = 0\nsteps = 100\nevaluate_every = 50\n')
    assert "adam" in mecam("table", tmp_path).stdout
    only = mecam("table", tmp_path, "--experiment", file, "--small").stdout
    assert "sam" in only
    assert "adam" not in only


def test_an_experiment_that_names_no_target_leaves_each_domain_out(tmp_path: Path) -> None:
    file = tmp_path / "one.toml"
    file.write_text('[[runs]]\noptimizer = "sam"\nsteps = 1\n')
    planned = mecam("bench", file, "--out", tmp_path / "out", "--dry-run").stdout
    assert "12 runs to do" in planned  # 4 domains x 3 seeds, as without a file
    assert "shapes-sketch-" in planned
    assert "-all-" not in planned


def test_what_a_grid_chose_is_said_and_json_stays_json(tmp_path: Path) -> None:
    for alpha, validation in ((0.05, 0.7), (0.2, 0.6)):
        settings = {"alpha": alpha, "beta": 0.1}
        write_run(tmp_path, 0.5, validation=validation, optimizer="mecam", optimizer_settings=settings)
    said = "mecam on shapes: alpha=0.05 chosen by source validation, beta > alpha."
    assert said in mecam("table", tmp_path, "--select", "shared").stdout
    found = mecam("table", tmp_path, "--select", "shared", "--format", "json")
    assert [row["variant"] for row in json.loads(found.stdout)] == ["alpha=0.05"] * 2
    assert said in found.stderr


def test_runs_of_before_a_change_of_the_data_are_said_to_be_so(tmp_path: Path) -> None:
    """Which one is the latest is told by its files, not by its name."""
    old, *new = (
        write_run(tmp_path, 0.5, data="data/chg", target=target, images=images)
        for target, images in (("photo", "before"), ("art", "after"), ("sketch", "after"))
    )
    for folder, time in ((old, 1), *((folder, 2) for folder in new)):
        os.utime(folder / "done.json", (time, time))
    note = (
        f"data/chg changed between runs: 1 of 3 used other data than the latest ({old.name}). Remove their folders "
        "and repeat the mecam bench command, or use a new --out."
    )
    for form in ("terminal", "markdown", "latex"):
        assert note in mecam("table", tmp_path, "--format", form).stdout
    found = mecam("table", tmp_path, "--format", "json")
    assert [row["runs"] for row in json.loads(found.stdout)] == [1, 1, 1, 3]
    assert found.stderr == f"mecam: {note}\n"
    os.utime(old / "done.json", (3, 3))
    assert f"2 of 3 used other data than the latest ({new[0].name}, {new[1].name})" in mecam("table", tmp_path).stdout
    (old / "done.json").unlink()
    assert "changed" not in mecam("table", tmp_path).stdout


def test_other_domains_of_the_same_folder_are_no_change_of_it(tmp_path: Path) -> None:
    for images, pattern in (("by site", "(site.)"), ("by camera", "exif:Model")):
        write_run(tmp_path, 0.5, data="data/photos", images=images, domain_from=pattern)
    found = mecam("table", tmp_path, "--format", "json")
    assert found.stderr == ""
    rows = [row for row in json.loads(found.stdout) if row["target"] == "art"]
    assert {row["variant"] for row in rows} == {"domain_from=(site.)", "domain_from=exif:Model"}


def test_a_benchmark_that_resumes_with_other_threads_reports_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["bench", "--target", "art,photo", *TINY, "--workers", "1", "--device", "cpu", "--out", tmp_path]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    first = mecam(*words, "--seeds", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    again, more = mecam(*words, "--seeds", "0"), mecam(*words, "--seeds", "0,1")
    assert (first.exit_code, again.exit_code, more.exit_code) == (0, 0, 0), more.stderr
    assert "last bits" not in first.output + again.output, "nothing is mixed"
    assert [line for line in more.output.splitlines() if "last bits" in line] == [
        "mecam: the table mixes runs from different environments: 2 with threads=1, 2 with threads=2; results may "
        "differ in the last bits"
    ]
    assert "last bits" not in more.stdout


def test_circumstances_that_are_mixed_take_one_line(tmp_path: Path) -> None:
    for seed, (threads, capability) in enumerate([(1, "AVX2")] * 3 + [(2, "AVX2"), (3, "AVX512"), (4, None), (1, "A")]):
        found = {"threads": threads, "instruction_set": capability, "python": seed, "torch": "2.13.0"}
        write_run(tmp_path, 0.5, seed=seed, environment=found)
    write_run(tmp_path, 0.5, seed=100)  # of an older version
    write_run(tmp_path, None, seed=101, environment={"torch": "1.0"})  # not finished
    write_run(tmp_path, 0.5, seed=102, environment=["no environment"])
    found = mecam("table", tmp_path, "--format", "json")
    assert found.stderr == (
        "mecam: the table mixes runs from different environments: 3 with instruction_set=AVX2, threads=1, 1 with "
        "instruction_set=AVX2, threads=2, 1 with instruction_set=AVX512, threads=3 and 2 with others; results "
        "may differ in the last bits\n"
    )


def test_names_with_commas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for domain in ("Berlin, clinic", "lab", "home"):
        for label in ("cat", "dog"):
            (folder := tmp_path / "photos, 2024" / domain / label).mkdir(parents=True)
            Image.effect_noise((16, 16), 99).save(folder / "1.png")
    words = ["bench", "--data", "photos, 2024", "--seeds", "0", "--dry-run", "--out", tmp_path / "out"]
    planned = mecam(*words, "--target", "Berlin\\, clinic,lab")
    assert (planned.exit_code, "2 runs to do" in planned.stdout) == (0, True), planned.stderr
    refused = mecam(*words, "--target", "Berlin, clinic")
    assert refused.stderr == (
        "mecam: photos, 2024 has no domain 'Berlin'; did you mean Berlin, clinic? On the command line, a comma in a "
        "name is written \\,\n"
    )


def test_a_plan_in_a_folder_with_damaged_runs(tmp_path: Path) -> None:
    words = ["bench", "--target", "art,photo", "--seeds", "0", *TINY, "--out", tmp_path]
    plain = write_run(tmp_path, 0.5, target="art", steps=2, evaluate_every=1, batch=4, image_size=16)
    (plain / "timing.json").write_text('{"seconds": 300, "steps": 3}')
    torn = write_run(tmp_path, None, target="art", optimizer="sam")
    (torn / "run.json").write_text('{"recipe": {"telesc')
    (torn / "timing.json").write_text('{"seconds": 1, "steps": 3}')
    said = mecam(*words, "--dry-run")
    assert said.exit_code == 0, said.stderr
    assert said.stdout.splitlines()[-1] == "1 runs to do, 1 done; 5:00 in sequence"


RECIPES = Path(__file__).parents[2] / "recipes"


def test_a_plan_needs_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MECAM_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    planned = mecam("bench", RECIPES / "table3.toml", "--data", "PACS", "--dry-run", "--out", tmp_path).stdout
    *runs, reason, count = planned.splitlines()
    assert len({run.partition("seed")[0] for run in runs}) == 4 * 13
    assert reason.startswith("time on PACS cannot be estimated: PACS is not part of mecam: get it (Li et al.")
    assert "$MECAM_DATA" in reason
    assert count == "156 runs to do, 0 done; time cannot be estimated"
    refused = mecam("bench", RECIPES / "table3.toml", "--data", "PACS", "--out", tmp_path)
    assert refused.exit_code == 2
    assert "PACS is not part of mecam" in refused.stderr
    assert "no domain 'arts'" in mecam("bench", "--data", "PACS", "--target", "arts", "--dry-run").stderr
    assert "there is no folder x/PACS" in mecam("bench", "--data", "x/PACS", "--dry-run").stderr


def test_a_plan_on_data_of_which_some_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MECAM_DATA", raising=False)
    words = ["bench", "--data", "shapes,VLCS", "--seeds", "0", *TINY, "--set", "backbone=resnet8", "--out", tmp_path]
    *_, reason, count = mecam(*words, "--dry-run").stdout.splitlines()
    assert reason.startswith("time on VLCS cannot be estimated")
    assert count.startswith("8 runs to do, 0 done; ")
    assert count.endswith(" in sequence, for 4 of them")


def test_a_table_of_an_experiment_needs_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MECAM_DATA", raising=False)
    write_run(tmp_path, 0.5, data="PACS", target="photo", optimizer="sam", profile="paper")
    write_run(tmp_path, 0.5, data="PACS", target="photo", optimizer="sam")
    rows = json.loads(mecam("table", tmp_path, "--experiment", RECIPES / "table3.toml", "--format", "json").stdout)
    assert [(row["target"], row["runs"]) for row in rows] == [("photo", 1), ("average", 1)]


@pytest.mark.usefixtures("in_process")
def test_a_profile_on_the_command_line_and_in_python(tmp_path: Path) -> None:
    data = make_folder(tmp_path / "PACS", each=4)
    cheap = {"steps": 1, "batch": 2, "evaluate_every": 1, "backbone": "resnet8"}
    words = ["bench", "--data", data, "--target", "art", "--seeds", "0", "--profile", "paper", "--optimizer", "sagm"]
    words += [word for name, value in cheap.items() for word in ("--set", f"{name}={value}")]
    words += ["--out", tmp_path / "out", "--workers", "1", "--device", "cpu"]
    assert mecam(*words).exit_code == 0
    recipe = json.loads(next((tmp_path / "out").glob("*/run.json")).read_text())["recipe"]
    assert (recipe["lr"], recipe["weight_decay"], recipe["dropout"]) == (3e-5, 1e-4, 0.5)
    assert recipe["optimizer_settings"] == {"rho": 0.05, "alpha": 1e-3}
    named: dict[str, Any] = {"data": str(data), "target": "art", "seeds": 0, "optimizer": "sagm", "profile": "paper"}
    again = bench(**named, set=[f"{name}={value}" for name, value in cheap.items()], out=tmp_path / "out")
    assert (again.runs, again.before) == (1, 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bench", "--profile", "paper"], "the paper has no settings for shapes"),
        (["bench", "--profile", "domainbad"], "did you mean domainbed"),
        (["bench", "--seeds", "0,0"], "names a value twice"),
        (["bench", "--seeds", "0,x"], "--seeds 0,x is not a list of whole numbers"),
        (["bench", "--optimizer", "adm"], "did you mean adam"),
        (["bench", "--method", "corla"], "did you mean coral"),
        (["bench", "--target", "arts", "--steps", "1"], "shapes has no domain 'arts'"),
        (["bench", "--small"], "--small needs an experiment"),
        (["bench", "--grid", "fine"], "there is no grid 'fine'"),
        (["bench", "--draws", "0"], "--draws 0"),
        (["bench", "--optimizer", "sam", "--set", "optimizer_settings.rho=[-1,0.1]"], "rho=-1 is not allowed"),
        (["bench", "--optimizer", "sam", "--grid", "paper"], "is a grid of mecam, got sam"),
        (["bench", "--set", "optimizer_settings.rho=0.1"], "adam has no setting 'rho'"),
        (["bench", "--optimizer", "adam,sam", "--set", "optimizer_settings.roh=0.1"], "did you mean rho"),
        (["bench", "--set", "optimizer_settings=3"], "optimizer_settings=3 is not a table"),
        (["bench", "--engine", "steam", "--dry-run"], "there is no engine 'steam'"),
        (["bench", "nowhere.toml"], "there is no experiment nowhere.toml"),
        (["bench", "."], ". is a folder and not an experiment; images are given with --data ."),
        (["table", "nowhere"], "there is no folder nowhere"),
        (["table", ".", "--spread", "wide"], "there is no spread 'wide'"),
    ],
)
def test_bad_words_are_one_line_and_exit_code_2(words: list[str], said: str, tmp_path: Path) -> None:
    if words[0] == "bench":
        words = [*words, "--out", str(tmp_path)]
    found = mecam(*words)
    assert found.exit_code == 2
    assert said in found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_a_probe_is_added_for_each_target_seed_and_pretrained_backbone() -> None:
    options = {"optimizer": "adam,sam", "target": "art,sketch", "seeds": "0,1", "backbone": "lite0small,resnet8"}
    plain, probed = plan_runs(None, options), plan_runs(None, options, probe=True)
    probes = [recipe for recipe in probed if recipe not in plain]
    assert len(probes) == len(probed) - len(plain) == 4
    assert {(probe.backbone, probe.trainable, probe.optimizer) for probe in probes} == {("lite0small", "head", "adam")}
    assert {(probe.target, probe.seed) for probe in probes} == {(t, s) for t in ("art", "sketch") for s in (0, 1)}
    assert not [r for r in plan_runs(None, {**options, "pretrained": False}, probe=True) if r.trainable == "head"]
