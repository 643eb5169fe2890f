"""`mecam bench --records --measure --minutes` and `mecam table FILE` as they are typed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mecam import bench
from mecam.benchmark.records_file import MEASUREMENTS, read_records
from mecam.benchmark.results import read
from mecam.cli import app
from mecam.figures.write import images

TINY = ["--steps", "2", "--set", "evaluate_every=1", "--set", "batch=4", "--set", "image_size=16"]
LOCAL = ["--workers", "1", "--device", "cpu"]
pytestmark = pytest.mark.usefixtures("cache", "in_process")


def mecam(*words: str | Path) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_benchmark_from_nothing_but_its_records(tmp_path: Path) -> None:
    out, records = tmp_path / "out", tmp_path / "records.json"
    words = ["bench", "--target", "art,photo", "--seeds", "0", *TINY, *LOCAL, "--out", out, "--records", records]
    first = mecam(*words, "--measure", "eigenvalue", "--minutes", "60")
    assert first.exit_code == 0, first.stderr
    known = read_records(records)
    assert len(known) == 2
    for run_id, record in known.items():
        assert [step for step, *_ in record.evaluations] == [0, 1, 2]
        assert record.result == json.loads((out / run_id / "done.json").read_text())["result"]
        assert record.environment["mecam"]
        assert record.seconds is not None
        assert record.measurements["eigenvalue"]["largest_eigenvalue"]
    again = mecam(*words, "--measure", "curvature,eigenvalue,landscape")
    assert again.exit_code == 0, again.stderr
    for run_id, record in read_records(records).items():
        assert set(record.measurements) == {"curvature", "eigenvalue", "landscape"}
        assert record.measurements["eigenvalue"] == known[run_id].measurements["eigenvalue"], "measured once"
        assert len(record.measurements["curvature"]["validation"]["curvature"]) == 5
        assert [len(record.measurements["landscape"][grid]["x"]) for grid in ("line", "plane")] == [21, 11]
        assert record.measurements == json.loads((out / run_id / MEASUREMENTS).read_text())
    table = mecam("table", out, "--format", "json").stdout
    iterations = images("figure3", out, read(out)[0])
    shutil.rmtree(out)
    assert mecam("table", records, "--format", "json").stdout == table
    assert images("figure3", records, read(records)[0]) == iterations
    left_out = [
        line for line in mecam("figures", records, "--out", tmp_path / "figures").stdout.split("\n") if "left" in line
    ]
    assert [line.partition(" is")[0] for line in left_out] == ["Supplementary Figure I(a)", "Supplementary Figure I(b)"]
    measured = mecam("curvature", records, "--split", "validation", "--format", "json")
    assert measured.exit_code == 0, measured.stderr
    assert json.loads(measured.stdout)["rows"]["adam"]["runs"] == 2
    assert "0 runs to do, 2 done" in mecam(*words, "--dry-run").stdout
    rerun = mecam(*words, "--measure", "curvature")
    assert rerun.exit_code == 0, rerun.stderr
    assert rerun.stdout.startswith("Accuracy on the unseen domain")
    assert not list(out.glob("*/run.json"))
    more = bench(
        target=["art", "sketch"], seeds=0, steps=2, set=TINY[3::2], out=out, records=records, workers=1, device="cpu"
    )
    assert (more.runs, more.before, len(more.done)) == (2, 1, 1)
    assert len(read_records(records)) == 3


def test_a_benchmark_whose_time_is_up_ends_well(tmp_path: Path) -> None:
    words = ["bench", "--target", "art,photo", "--seeds", "0", *TINY, *LOCAL, "--out", tmp_path]
    assert mecam(*words, "--target", "art").exit_code == 0
    [timing] = tmp_path.glob("*/timing.json")
    timing.write_text('{"seconds": 300, "steps": 3}')
    late = mecam(*words, "--minutes", "1")
    assert late.exit_code == 0
    assert "the time is up; 1 runs are left. The same command resumes them." in late.stderr
    assert mecam(*words, "--minutes", "6").exit_code == 0
    assert len(list(tmp_path.glob("*/done.json"))) == 2


def test_what_cannot_be_measured_or_tabulated_is_refused(tmp_path: Path) -> None:
    refused = mecam("bench", "--measure", "curvatur", "--out", tmp_path)
    assert (refused.exit_code, "did you mean curvature" in refused.stderr) == (2, True)
    refused = mecam("table", tmp_path, "--accuracy", "best")
    assert (refused.exit_code, "there are selected, balanced, second-half" in refused.stderr) == (2, True)
    assert "nor a records file" in mecam("table", tmp_path / "nowhere").stderr
