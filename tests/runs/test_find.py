"""Paths as they are typed, and as a shell expands them, to the folders of runs."""

from pathlib import Path

import pytest

from mecam.runs import RunError, find_run, find_runs, runs_in
from mecam.runs.find import verify
from mecam.storage.checksums import seal


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """What mecam bench leaves in its --out, and what users put beside it."""
    out = tmp_path / "runs"
    for name in ("b", "a", ".hidden"):
        (out / name).mkdir(parents=True)
        (out / name / "run.json").write_bytes(seal({"id": name, "recipe": {}, "environment": {}}))
    (out / "bench.log").write_text("a begins\n")
    (out / "report.html").write_text("<html>")
    (out / "landscape").mkdir()
    (out / "landscape" / "landscape.png").write_bytes(b"")
    return out


def names(*paths: Path) -> list[str]:
    return [folder.path.name for folder in find_runs(paths)]


def test_a_folder_gives_its_runs_and_skips_the_rest(out: Path) -> None:
    assert names(out) == ["a", "b"]
    assert names(out / "b") == ["b"]
    assert runs_in(out / "bench.log") == []


def test_everything_that_a_shell_finds_in_a_folder_of_runs(out: Path) -> None:
    assert names(*sorted(out.iterdir())) == [".hidden", "a", "b"]  # a shell leaves hidden ones out, unless asked
    assert names(*sorted(out.glob("[!.]*"))) == ["a", "b"]
    assert verify(sorted(out.glob("[!.]*")))[0] == verify([out])[0] == 2


def test_a_run_counts_once(out: Path) -> None:
    assert names(out / "b", out, out / "." / "a", out.parent / "runs" / ".." / "runs" / "b") == ["b", "a"]


@pytest.mark.parametrize("name", ["bench.log", "report.html", "landscape", "nowhere"])
def test_what_holds_no_run_is_an_error_elsewhere(out: Path, name: str) -> None:
    other = out.parent / "other"
    (out / "landscape").rename(out.parent / "landscape")
    for file in ("bench.log", "report.html"):
        (out / file).rename(out.parent / file)
    other.mkdir()
    for given in ([out.parent / name], [out, out.parent / name], [out / "a", out.parent / name]):
        with pytest.raises(RunError, match=r"there is no run in .*; give the folder of a run, or the --out of"):
            find_runs(given)


def test_a_path_that_does_not_exist_is_an_error_beside_a_run_too(out: Path) -> None:
    with pytest.raises(RunError, match=r"there is no run in .*nowhere, which does not exist"):
        find_runs([out / "a", out / "nowhere"])


def test_one_run_where_one_is_needed(out: Path) -> None:
    assert find_run(out / "a").path == out / "a"
    with pytest.raises(RunError, match=r"runs holds 2 runs; give one of them, such as .*a$"):
        find_run(out)
    (out / "b" / "run.json").unlink()
    assert find_run(out).path == out / "a"
