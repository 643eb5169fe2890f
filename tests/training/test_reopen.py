"""Commands on a finished run, from where it was trained and from elsewhere."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mecam.cli import app
from mecam.data import DataError
from mecam.recipe import Recipe
from mecam.training.reopen import reopen
from tests.serving.runs import TINY, write_images


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with data in clean/, and a run on it in model/."""
    place = tmp_path_factory.mktemp("place")
    write_images(place / "clean")
    with pytest.MonkeyPatch.context() as surroundings:
        surroundings.setenv("MECAM_CACHE", str(place / "cache"))
        surroundings.chdir(place)
        said = mecam("train", "--data", "clean", "--target", "home", *TINY, "--out", "model")
        assert said.exit_code == 0, said.stderr
        yield place


def mecam(*words: object) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("spelling", ["clean/", "./clean", "cache/../clean"])
def test_other_spellings_of_the_folder_are_the_same_run(spelling: str) -> None:
    again = mecam("train", "--data", spelling, "--target", "home", *TINY, "--out", "model")
    assert (again.exit_code, again.stderr) == (0, "")
    assert "is already finished" in again.stdout
    plan = mecam("bench", "--data", spelling, "--target", "home", "--seeds", 0, *TINY, "--out", "model", "--dry-run")
    assert "0 runs to do, 1 done" in plan.stdout


@pytest.mark.parametrize("command", ["rerun", "curvature", "spectrum", "landscape"])
def test_from_elsewhere_the_data_is_said_to_be_the_runs(
    place: Path, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = mecam(command, place / "model")
    assert said.exit_code == 2
    [run] = (place / "model").glob("clean-*")
    assert said.stderr == (
        f"mecam: the data of the run in {run} is not found: there is no folder 'clean' in {tmp_path}, and its path is "
        "relative to where the run was trained; call mecam from there, link it here (ln -s WHERE_IT_IS clean), or give "
        "its place by --data\n"
    )
    if command == "rerun":
        (tmp_path / "clean").symlink_to(place / "clean")
        assert mecam(command, place / "model").exit_code == 0


def test_a_page_from_elsewhere_says_what_it_leaves_out(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mecam("report", "model", "--out", tmp_path / "here.html").stderr == ""
    monkeypatch.chdir(tmp_path)
    said = mecam("report", place / "model")
    assert (said.exit_code, said.stdout) == (0, "report.html\n")
    assert said.stderr.startswith("mecam: images of clean are left out: the data of the run in ")
    assert "images of clean are left out" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_data_that_has_no_path_or_a_full_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MECAM_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"run in r is not found: PACS is not part of mecam.*MECAM_DATA"):
        reopen(Path("r"), Recipe(data="PACS"))
    with pytest.raises(DataError, match="there is no folder /nowhere/clean; put it back there, link it"):
        reopen(Path("r"), Recipe(data="/nowhere/clean"))
    (tmp_path / "clean").mkdir()
    with pytest.raises(DataError, match="clean has no folders in it"):
        reopen(Path("r"), Recipe(data="clean"), "clean")
