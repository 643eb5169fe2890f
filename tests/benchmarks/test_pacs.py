"""The study on PACS: its driver goes on where it stopped."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from mecam.models import resnet8
from mecam.recipe import Recipe

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import pacs
import pacs_plan

SMALL = ["data=shapes", "backbone=resnet8", "pretrained=false", "image_size=32"]
SMALL += ["steps=1", "evaluate_every=1", "batch=2", "dropout=0"]
Drive = Callable[..., str]


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Drive:
    """The driver, writing to pacs.json; what it prints."""

    def run(*options: str) -> str:
        monkeypatch.setenv("MECAM_WEIGHTS", "")  # put back after the test, whatever the driver sets it to
        files = ["--out", str(tmp_path / "pacs.json"), "--known", str(tmp_path / "none.json")]
        monkeypatch.setattr(sys, "argv", ["pacs.py", "--device", "cpu", *files, "--set", *SMALL, *options])
        assert pacs.main() == 0
        return capsys.readouterr().out

    return run


def read(file: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(file.read_text())
    return found


def test_it_goes_on_where_it_stopped(drive: Drive, tmp_path: Path) -> None:
    out, few = (
        tmp_path / "pacs.json",
        ["--phases", "main", "--only", "method=erm", "averaging=none", "seed=0", "target=sketch"],
    )
    curved = ["--curvature", "--curvature-images", "12", "--spectrum-images", "4"]
    assert drive(*few, "optimizer=adam", "--list").startswith("main: 0 of 1 runs done")
    assert not out.exists()
    text = drive(*few, "optimizer=adam")
    assert text.count("% on the target") == 1
    (first,) = read(out).values()
    assert first["recipe"]["steps"] == 1
    assert [entry[0] for entry in first["history"]] == [0, 1]
    best = max(first["history"], key=lambda entry: entry[1])
    assert first["selected_step"] == best[0]
    assert first["target_accuracy"] == first["splits"]["sketch in"][0] == best[3]
    assert len(first["splits"]) == 8

    text = drive(*few, "optimizer=adam,mecam")
    assert text.count("% on the target") == 1  # the other one
    assert read(out)[next(run_id for run_id in read(out) if "-adam-" in run_id)] == first
    assert len(out.read_text().splitlines()) == 4  # a run a line

    assert "stopped: " in drive(*few, "optimizer=sam", "--minutes", "0")
    assert "% on the target" not in drive(*few, "optimizer=mecam", *curved, "--curvature-target", "photo", "art")
    with pytest.raises(SystemExit, match="--curvature-target attic: the domains are "):
        drive(*few, *curved, "--curvature-target", "attic")
    text = drive(*few, "optimizer=mecam", *curved, "--curvature-target", "sketch")  # asked for more than is there
    assert text.count("% on the target") == 1
    measured = next(record["curvature"] for run_id, record in read(out).items() if "-mecam-" in run_id)
    assert [measured[split]["images"] for split in ("train", "validation", "target")] == [12, 12, 12]
    assert len(measured["train"]["C"]) == len(measured["rho"]) == 5
    assert measured["spectrum"]["images"] == 4
    assert measured["spectrum"]["eigenvalue"] != 0
    listed = drive(*few, "optimizer=adam,mecam", "--list")
    assert listed.startswith("main: 2 of 2 runs done, 0 minutes to go")


def test_weights_that_were_trained_elsewhere_are_measured_here(drive: Drive, tmp_path: Path) -> None:
    few = ["--phases", "half", "--only", "method=erm", "averaging=none", "seed=0", "target=sketch", "optimizer=adam"]
    out, kept = tmp_path / "pacs.json", ["--keep", str(tmp_path / "kept")]
    drive(*few, *kept)
    ((run_id, trained),) = read(out).items()
    trained |= {"machine": "another", "commit": "another", "seconds": 1000.0}
    out.write_text(json.dumps({run_id: trained}))
    drive(*few, *kept, "--curvature", "--curvature-images", "6", "--spectrum-images", "0")
    (measured,) = read(out).values()
    found = measured.pop("curvature")
    assert measured.pop("curvature_seconds") < 1000
    assert measured == trained
    assert found["machine"] != "another"
    assert "spectrum" not in found

    ((_, before),) = read(out).items()
    drive(*few, *kept, "--curvature", "--curvature-images", "12", "--spectrum-images", "4")  # what is there stays
    (after,) = read(out).values()
    spectrum = after["curvature"].pop("spectrum")
    assert spectrum["images"] == 4
    assert spectrum["machine"] == found["machine"]
    assert after["curvature"] == before["curvature"]
    assert after.pop("curvature_seconds") >= before.pop("curvature_seconds")
    assert after == before
    assert "% on the target" not in drive(*few, *kept, "--curvature", "--spectrum-images", "4")


def test_a_run_that_a_longer_one_holds_is_not_trained(drive: Drive, tmp_path: Path) -> None:
    few = ["--only", "optimizer=mecam", "method=erm", "averaging=none", "seed=0", "target=sketch"]
    reference = [*few, "virtual=mixstyle", "optimizer_settings.rho=0.1", "optimizer_settings.alpha=0.1"]
    out = tmp_path / "pacs.json"
    drive("--phases", "main", *few, "--set", *SMALL, "steps=2")
    ((long_id, long),) = read(out).items()

    text = drive("--phases", "parts", *reference, "optimizer_settings.beta=0.0,0.1", "--list")
    assert text.startswith("parts: 1 of 7 runs done (1 of them held by longer ones), ")
    text = drive("--phases", "parts", *few, "optimizer_settings.rho=0.1,0.0", "virtual=none,mixstyle", "--minutes", "0")
    assert text.startswith("parts: 1 of 11 runs are held by longer ones that are known\n")
    assert "stopped: " in text  # at the first that nothing is known of
    assert set(read(out)) == {long_id}

    # had it been trained, it would be that
    out.unlink()
    drive("--phases", "main", *few)
    (short,) = read(out).values()
    shorter = pacs_plan.cut(long, 1)
    assert shorter is not None
    for name in ("recipe", "history", "selected_step", "target_accuracy"):
        assert short[name] == shorter[name]


def test_a_run_that_is_not_kept_is_finished_after_the_deadline(
    drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter([1000.0])  # asked before the first run
    monkeypatch.setattr(pacs.Deadline, "left", lambda _: next(left, -1.0))
    few = ["--phases", "main", "--only", "method=erm", "averaging=none", "seed=0", "optimizer=adam"]
    curved = ["--curvature", "--curvature-images", "6", "--spectrum-images", "0"]
    text = drive(*few, *curved, "--set", *SMALL, "steps=3")
    assert text.count("% on the target") == 1
    assert "stopped: " in text
    (record,) = read(tmp_path / "pacs.json").values()
    assert record["history"][-1][0] == 3
    assert "curvature" in record


def test_a_damaged_folder_stops_no_other_run(drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = [
        "--phases",
        "main",
        "--only",
        "method=erm",
        "averaging=none",
        "seed=0",
        "target=sketch",
        "optimizer=adam,sam",
    ]
    kept = tmp_path / "kept"
    drive(*few, "--keep", str(kept))
    (tmp_path / "pacs.json").unlink()
    folder = next(folder for folder in kept.iterdir() if folder.is_dir() and "-adam-" in folder.name)
    (folder / "done.json").unlink()
    (folder / "records.jsonl").write_text("damaged\n")
    assert pacs.main() == 1  # the same command
    printed = capsys.readouterr()
    assert "records.jsonl" in printed.err
    assert printed.out.count("% on the target") == 1
    assert ["-sam-" in run_id for run_id in read(tmp_path / "pacs.json")] == [True]


ONLY = Recipe(optimizer="mecam", virtual_settings={"layers": "1,2"}, optimizer_settings={"rho": 0.0, "noise": True})


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("optimizer=adam,mecam", True),
        ("optimizer=adam,sam", False),
        ("optimizer_settings.rho=0.0", True),
        ("optimizer_settings.rho=0.1,0.0", True),
        ("optimizer_settings.rho=0.1", False),
        ("optimizer_settings.rho=0e-4", True),
        ("optimizer_settings.noise=True", True),
        ("optimizer_settings.alpha=None", False),  # absent
        ("virtual_settings.layers=1", False),
        ("virtual_settings.layers=1,2", True),
        ("virtual=mixstyle", True),
        ("virtual=none", False),
    ],
)
def test_runs_are_picked_by_entry_and_setting(assignment: str, expected: bool) -> None:
    assert pacs.matches(ONLY, assignment) is expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "rho=0.1"], "a recipe has no such entry"),
        (["--only", "optimizer.rho=0.1"], "settings, and they alone"),
        (["--only", "optimizer_settings=0.1"], "settings, and they alone"),
        (["--only", "optimizer_settings.=0.1"], "settings, and they alone"),
        (["--only", "optimizer"], "of the form name=value"),
        (["--curvature-target", "sketch"], "ask for it with --curvature"),
    ],
)
def test_what_is_asked_for_wrongly_is_refused(
    drive: Drive, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        drive(*options)
    assert message in capsys.readouterr().err


def test_landscapes_are_drawn_of_three_runs(drive: Drive, tmp_path: Path) -> None:
    few = ["--phases", "main", "--only", "method=erm", "averaging=none", "seed=0", "target=sketch"]
    options = ["--landscapes", "sketch", "--landscape-steps", "3", "--landscape-images", "4"]
    options += ["--landscape-radius", "0.5"]
    drive(*few, "optimizer=sam")
    (known,) = read(tmp_path / "pacs.json").values()
    known["curvature"] = {"of": "weights that were not kept"}
    run_id = Recipe(**known["recipe"]).run_id
    (tmp_path / "pacs.json").write_text(json.dumps({run_id: known}))
    out = drive(*few, "optimizer=adam,sam,mecam", *options, "--figures", str(tmp_path / "figures"))
    assert out.count("% on the target") == 3
    assert read(tmp_path / "pacs.json")[run_id] == known  # what is known of a run outlives its training for a picture
    files = {file.name for file in (tmp_path / "figures").iterdir()}
    assert files == {"landscape-contour.png", "landscape-surface.png", "landscape-line.png", "landscapes.json"}
    numbers = read(tmp_path / "figures" / "landscapes.json")
    assert list(numbers) == [f"{name}, {d}-D" for d in (1, 2) for name in ("ERM", "SAM", "MeCAM")]
    assert len(numbers["SAM, 1-D"]["loss"][0]) == 5
    assert numbers["SAM, 2-D"]["x"] == [-0.5, 0.0, 0.5]
    assert numbers["SAM, 1-D"]["loss"][0][2] == pytest.approx(numbers["SAM, 2-D"]["loss"][1][1], rel=1e-3)


MEASURED = ["--curvature-images", "6", "--spectrum-images", "4", "--landscape-steps", "3", "--landscape-images", "4"]


class TestResNet50:
    """The study whose runs are measured as soon as they are trained, here on the smallest network."""

    @pytest.fixture
    def few(self, tmp_path: Path) -> list[str]:
        weights = tmp_path / "weights" / "tiny.safetensors"
        weights.parent.mkdir()
        save_file(resnet8(classes=3).state_dict(), weights)
        kept = ["--keep", str(tmp_path / "kept")]
        return [
            "--phases",
            "resnet50",
            "--weights",
            str(weights),
            *kept,
            *MEASURED,
            "--only",
            "target=sketch",
            "seed=0",
        ]

    def test_one_command_trains_and_measures(self, drive: Drive, few: list[str], tmp_path: Path) -> None:
        text = drive(*few)
        assert text.count("% on the target") == 4
        records = read(tmp_path / "pacs.json")
        assert [run_id.split("-")[3] for run_id in records] == ["adam", "mecam", "sagm", "sam"]
        for record in records.values():
            assert record["recipe"]["weights"] == "tiny.safetensors"  # wherever it lies
            assert len(record["curvature"]["train"]["C"]) == len(record["curvature"]["validation"]["C"]) == 5
            assert record["curvature"]["spectrum"]["eigenvalue"] != 0
            line, plane = record["landscape"]["line"], record["landscape"]["plane"]
            assert (len(line["loss"]), len(line["loss"][0]), len(plane["loss"]), len(plane["loss"][0])) == (1, 5, 3, 3)
            assert line["loss"][0][2] == pytest.approx(plane["loss"][1][1], rel=1e-3)  # the weights themselves
            assert "sessions" not in record
        assert "% on the target" not in drive(*few)
        assert drive(*few, "--list").startswith("resnet50: 4 of 4 runs done, 0 minutes to go")

    def test_a_run_that_time_runs_out_on_is_resumed(
        self, drive: Drive, few: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        few = [*few, "optimizer=mecam", "--set", *SMALL, "steps=3"]
        drive(*few)
        ((run_id, whole),) = read(tmp_path / "pacs.json").items()
        (tmp_path / "pacs.json").unlink()

        def clock(ticks: int) -> None:
            left = iter([1000.0] * ticks)
            monkeypatch.setattr(pacs.Deadline, "left", lambda _: next(left, -1.0))

        few += ["--keep", str(tmp_path / "again")]
        clock(3)  # asked before the run and after steps 0 and 1
        assert "stopped by SIGTERM after step 2; the run is saved; the same command resumes it" in drive(*few)
        assert not (tmp_path / "pacs.json").exists()
        assert "stopped: " in drive(*few)  # no time at all
        clock(3)  # asked before the run, after the last step and before curvature
        assert "no time left to measure spectrum; the same command resumes it" in drive(*few)
        assert "spectrum" not in read(tmp_path / "pacs.json")[run_id]["curvature"]
        clock(100)
        assert drive(*few).count("% on the target") == 1
        resumed = read(tmp_path / "pacs.json")[run_id]
        assert resumed.pop("sessions") == 2  # training took two of them
        assert set(resumed) == set(whole)
        for name in ("recipe", "history", "splits", "selected_step", "target_accuracy"):
            assert resumed[name] == whole[name]

    def test_whole_runs_only(self, drive: Drive, few: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pacs.Deadline, "left", lambda _: 2 * pacs.WORTH)
        monkeypatch.setattr(pacs, "estimate", lambda *_: 3 * pacs.WORTH)
        assert "stopped: " in drive(*few, "--whole")
        assert "% on the target" in drive(*few, "optimizer=adam")

    def test_its_order(self) -> None:
        runs = pacs_plan.planned("resnet50", {"PACS": ("art_painting", "cartoon", "photo", "sketch")})
        assert [recipe.optimizer for recipe in runs[:5]] == ["adam", "sam", "sagm", "mecam", "adam"]
        assert [recipe.target for recipe in runs[:5]] == [*["art_painting"] * 4, "cartoon"]
        assert [recipe.seed for recipe in runs] == [0] * 16 + [1] * 16 + [2] * 16
        more = pacs_plan.planned("resnet50_more", {"PACS": ("art_painting", "cartoon", "photo", "sketch")})
        assert [recipe.seed for recipe in more] == [0] * 24 + [1] * 24 + [2] * 24

    def test_later_seeds_are_shortened_if_all_of_the_first_select_early(self) -> None:
        runs = pacs_plan.planned("resnet50", {"PACS": ("art_painting", "cartoon", "photo", "sketch")})
        records: pacs_plan.Records = {recipe.run_id: {"selected_step": 1900} for recipe in runs if recipe.seed == 0}
        assert pacs_plan.selects_early(records, runs)
        assert not pacs_plan.selects_early({**records, runs[0].run_id: {"selected_step": 2000}}, runs)
        assert not pacs_plan.selects_early({run.run_id: records[run.run_id] for run in runs[:15]}, runs)
        assert pacs_plan.shortened(runs[0], records) == runs[0]
        assert pacs_plan.shortened(runs[16], records).steps == 3000
        assert pacs_plan.shortened(runs[16], {runs[16].run_id: {}}) == runs[16]  # there in full
        late = Recipe(seed=1, steps=5000, optimizer="thinmecam", optimizer_settings={"rho": 0.1, "start": 3250})
        assert pacs_plan.shortened(late, {}).optimizer_settings == {"rho": 0.1, "start": 1950}

    def test_what_is_missing_is_said_at_the_start(
        self, drive: Drive, few: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        with pytest.raises(SystemExit, match=r"no file resnet50_imagenet_v1.safetensors; give --weights FILE"):
            drive("--phases", "resnet50")
        with pytest.raises(SystemExit):
            drive("--phases", "resnet50", "--weights", str(tmp_path / "absent.safetensors"))
        assert "--weights: there is no file " in capsys.readouterr().err
        with pytest.raises(SystemExit):
            drive(*few, "--phases", "main", "resnet50")
        assert "have a results file of their own" in capsys.readouterr().err

    def test_it_needs_few_packages(self, few: list[str], tmp_path: Path) -> None:
        """A machine that is lent for some minutes may have no others, and no way to get them."""
        absent = ("scipy", "ray", "plotly", "curvlinops", "matplotlib", "typer", "rich", "timm", "pytorch_optimizer")
        files = ["--out", str(tmp_path / "pacs.json"), "--device", "cpu"]
        argv = ["pacs.py", *few, "optimizer=mecam", *files, "--set", *SMALL]
        script = (
            f"import sys\nfor name in {absent}: sys.modules[name] = None\nsys.argv = {argv}\nimport pacs\npacs.main()"
        )
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, cwd=Path(pacs.__file__).parent, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        (record,) = read(tmp_path / "pacs.json").values()
        assert {"curvature", "landscape"} <= set(record)
