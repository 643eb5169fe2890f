"""Every code block of the documentation: Python is run, a page from top to bottom; of commands every word is checked.

Commands of the first page are run as well, on a small folder.
"""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

from mecam.cli import app
from mecam.methods import METHODS
from mecam.models import resnet8
from tests.docs.commands import parse
from tests.docs.pages import PAGES, ROOT, blocks, name

LANGUAGES = {"python", "sh", "text", "toml", ""}
COMMANDS = ("mecam", "make", "pip", "python", "torchrun", "pre-commit")
SMALL = {
    "train": ["--backbone", "resnet8", "--steps", "1", "--set", "image_size=32", "--device", "cpu", "--quiet"],
    "bench": ["--backbone", "resnet8", "--steps", "1", "--set", "image_size=32", "--device", "cpu"],
}


def python_pages() -> list[Path]:
    return [page for page in PAGES if any(block.language == "python" for block in blocks(page))]


def commands() -> list[tuple[str, str]]:
    """The page and the line of every command in the documentation."""
    found = []
    for page in PAGES:
        for block in blocks(page):
            lines = block.code.replace("\\\n", " ").splitlines() if block.language in ("sh", "") else []
            for line in lines:
                if block.language == "":  # words about a command stand in a column of their own
                    line = re.split(r"\s{2,}", line)[0]
                known = line.startswith(COMMANDS)
                assert known or block.language == "" or not line.strip(), f"{name(page)}: what is {line!r}?"
                found += [(name(page), line)] if known else []
    return found


def setting() -> dict[str, Any]:
    """What a snippet leaves to its reader: a model, batches and a loss."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(8, 3, 32, 32), torch.randint(0, 7, (8,)))
    return {"model": resnet8(classes=7), "loader": DataLoader(data, batch_size=4), "loss_function": F.cross_entropy}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MECAM_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("page", python_pages(), ids=name)
@pytest.mark.filterwarnings("ignore")
def test_python_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mecam.methods.registry.METHODS", dict(METHODS))  # a page may register one
    names = {"__name__": "page", **setting()}
    for number, block in enumerate(block for block in blocks(page) if block.language == "python"):
        exec(compile(block.code, f"{name(page)}, block {number}", "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_say_what_they_are(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= LANGUAGES


@pytest.mark.parametrize(("page", "line"), commands())
def test_a_command_is_one(page: str, line: str) -> None:
    program, *words = shlex.split(line, comments=True)
    if program == "torchrun":
        words = words[words.index("mecam.cli") + 1 :]
    if words == ["--install-completion"]:
        assert "--install-completion" in CliRunner().invoke(app, ["--help"]).output
    elif program in ("mecam", "torchrun"):
        parse(words)
    elif program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in words), page
    elif program == "python":
        assert words[0] == "-m" or (ROOT / words[0]).is_file(), page
    else:
        assert words[0] == "install"  # that the extras exist is tested with the package


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("trian", "AssertionError"),
        ("train --optimiser mecam", "NoSuchOption"),
        ("train --steps many", "BadParameter"),
        ("data chek root", "AssertionError"),
        ("predict", "MissingParameter"),
    ],
)
def test_a_command_that_is_none_is_noticed(words: str, complaint: str) -> None:
    with pytest.raises(Exception) as found:  # noqa: PT011
        parse(words.split())
    assert type(found.value).__name__ == complaint


def test_the_first_page_works_as_written(tmp_path: Path) -> None:
    write_pictures(tmp_path / "root")
    pictures = sorted((tmp_path / "root").rglob("*.png"))
    pictures[0].rename(tmp_path / "photo.jpg")
    (tmp_path / "folder-of-photos").symlink_to(pictures[1].parent)
    lines = [line for page, line in commands() if page == "docs/index.md" and re.match("mecam [a-z]", line)]
    outputs = {}
    for line in lines:
        command, *words = shlex.split(line, comments=True)[1:]
        words = ["0" if word == "0,1,2" else word for word in words]  # one seed
        done = CliRunner().invoke(app, [command, *words, *SMALL.get(command, [])])
        assert done.exit_code == 0, f"{line}: {done.output}"
        outputs[command] = done.stdout
    assert list(outputs) == ["doctor", "bench", "table", "report", "train", "predict", "export"]
    assert {"adam", "mecam"} <= set(outputs["table"].split())
    assert outputs["predict"].count("\n") == 1 + 1 + len(list((tmp_path / "folder-of-photos").iterdir()))
    assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert list((tmp_path / "exported").glob("*.onnx"))


def write_pictures(root: Path, per_class: int = 4) -> None:
    """Two domains and two classes of the embedded set as files."""
    from PIL import Image

    from mecam.data.shapes import shapes

    data = shapes(per_class=per_class)
    for domain in range(2):
        for index in range(2 * per_class):
            file = root / data.sample_name(domain, index)
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(data.images(domain, [index])[0].permute(1, 2, 0).numpy()).save(file)
