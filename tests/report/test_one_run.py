"""The page of a single run, finished or not, with a target or without."""

import re
from html import unescape
from pathlib import Path

import pytest

from mecam.progress import Event
from mecam.report import write
from mecam.report.one_run import only_run
from mecam.runs import RunError
from tests.report.runs import CLASSES, ENVIRONMENT, write_run

DOMAINS = ["art", "<i>photo</i>"]
WRONG = [(0, 1, 0.5), (0, 1, 0.9), (1, 1, 0.8), (2, 0, 0.25)]


def page(path: Path, file: Path) -> tuple[str, list[str]]:
    """The page on this folder, and the warnings."""
    events: list[Event] = []
    write(path, file, progress=events.append)
    return file.read_text(encoding="utf-8"), [event.text for event in events]


def text_of(page: str) -> str:
    return unescape(" ".join(re.sub(r"<[^>]*>", " ", page.partition("<body>")[2]).split()))


def test_which_folders_are_a_run(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert only_run(tmp_path / "empty") is None
    for name, accuracy, target, alone in (("a", 0.5, None, True), ("b", None, "art", True), ("c", 0.5, "art", False)):
        folder = write_run(tmp_path / name, accuracy, domains=DOMAINS, target=target)
        for path, expected in ((folder.path, True), (tmp_path / name, alone)):
            found = only_run(path)
            assert (found is not None) == expected
            assert found is None or found.path == folder.path
    write_run(tmp_path / "a", 0.5, domains=DOMAINS, seed=1)
    assert only_run(tmp_path / "a") is None


def test_a_finished_run(tmp_path: Path) -> None:
    write_run(tmp_path / "out", 0.75, domains=DOMAINS, predicted=WRONG, data="nowhere")
    html, notes = page(tmp_path / "out", tmp_path / "page.html")
    text = text_of(html)
    assert "accuracy on the sources' held-out images 75.0 % weights of step 20 of" in text
    assert "art held-out images 10 75.0 % - -" in text
    assert "Confusion: held-out images of all domains" in text
    assert "predicted as quote &quot; and &#x27; it: 2" in html
    assert re.search(r"90\.0 %: image 1 50\.0 %: image 0", text), "the most confident first"
    assert "0 25.0 % 1.75 10 50.0 % 1.5 20 75.0 % 1.25" in text
    assert "mecam train --data nowhere --method erm" in text
    assert ENVIRONMENT["mecam"] in text
    assert len(notes) == 1
    assert notes[0].startswith("images are left out: the data of the run in ")


def test_names_are_text(tmp_path: Path) -> None:
    target = DOMAINS[1]
    run = write_run(tmp_path, 0.75, domains=DOMAINS, target=target, predicted=WRONG, data="no <b>where</b>")
    html, _ = page(run.path, tmp_path / "page.html")
    assert not re.search(r"<(script|b|i)\b", html)
    for name in (*CLASSES, *DOMAINS, f"accuracy on {target}, unseen"):
        assert name in text_of(html)


def test_a_run_that_has_not_finished(tmp_path: Path) -> None:
    run = write_run(tmp_path, None, domains=DOMAINS, target="art", steps=50)
    for path in (tmp_path, run.path):
        html, notes = page(path, tmp_path / "page.html")
        note = f"the run in {run.path} was stopped after step 20 of 50; accuracies are those after step 20"
        assert notes == [note]
        assert note in text_of(html)
        assert "accuracy on art, unseen 50.0 %" in text_of(html)


def test_a_run_without_an_evaluation(tmp_path: Path) -> None:
    write_run(tmp_path, None, domains=DOMAINS, evaluations=0)
    with pytest.raises(RunError, match="has not been evaluated yet, so there is nothing to report"):
        write(tmp_path, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
