"""The study on PACS: its driver goes on where it stopped."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = ["data=shapes", "backbone=resnet8", "pretrained=false", "image_size=32"]
SMALL += ["steps=1", "evaluate_every=1", "batch=2", "dropout=0"]
Drive = Callable[..., str]


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Drive:
    """The driver, writing to pacs.json; what it prints."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import pacs

    def run(*options: str) -> str:
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
    text = drive(*few, "optimizer=mecam", *curved)  # asked for more than is there
    assert text.count("% on the target") == 1
    measured = next(record["curvature"] for run_id, record in read(out).items() if "-mecam-" in run_id)
    assert [measured[split]["images"] for split in ("train", "validation", "target")] == [12, 12, 12]
    assert len(measured["train"]["C"]) == len(measured["rho"]) == 5
    assert measured["spectrum"]["images"] == 4
    assert measured["spectrum"]["eigenvalue"] != 0
    listed = drive(*few, "optimizer=adam,mecam", "--list")
    assert listed.startswith("main: 2 of 2 runs done, 0 minutes to go")


def test_landscapes_are_drawn_of_three_runs(drive: Drive, tmp_path: Path) -> None:
    few = ["--phases", "main", "--only", "method=erm", "averaging=none", "seed=0", "target=sketch"]
    options = ["--landscapes", "sketch", "--landscape-steps", "3", "--landscape-images", "4"]
    out = drive(*few, "optimizer=adam,sam,mecam", *options, "--figures", str(tmp_path / "figures"))
    assert out.count("% on the target") == 3
    files = {file.name for file in (tmp_path / "figures").iterdir()}
    assert files == {"landscape-contour.png", "landscape-surface.png", "landscape-line.png", "landscapes.json"}
    numbers = read(tmp_path / "figures" / "landscapes.json")
    assert list(numbers) == [f"{name}, {d}-D" for d in (1, 2) for name in ("ERM", "SAM", "MeCAM")]
    assert len(numbers["SAM, 1-D"]["loss"][0]) == 5
    assert numbers["SAM, 1-D"]["loss"][0][2] == pytest.approx(numbers["SAM, 2-D"]["loss"][1][1], rel=1e-3)
