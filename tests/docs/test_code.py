"""Python in the documentation runs, each page from top to bottom; for commands see test_commands.py.

Blocks marked `py` need a framework that is not installed here: tests/ecosystem/test_docs.py runs them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import mecam
from mecam.models import resnet8
from tests.docs.pages import PAGES, blocks, name
from tests.docs.sandbox import write_pictures

LANGUAGES = {"python", "py", "sh", "text", "toml", ""}


def python_pages() -> list[Path]:
    return [page for page in PAGES if any(block.language == "python" for block in blocks(page))]


def setting() -> dict[str, Any]:
    """What a snippet leaves to its reader: a model, batches and a loss."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(8, 3, 32, 32), torch.randint(0, 7, (8,)))
    return {
        "model": resnet8(classes=7),
        "loader": DataLoader(data, batch_size=4),
        "loss_function": F.cross_entropy,
        "language_model": LanguageModel(),
        "sentences": [{"tokens": torch.tensor([n, 1]), "labels": torch.tensor(n % 2)} for n in range(16)],
    }


class LanguageModel(nn.Module):
    """A model that returns its loss, as those of Transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(16, 4), nn.Flatten(), nn.Linear(8, 2))

    def forward(self, tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.layers(tokens)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MECAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("mecam.fitting.run.export", lambda *_: None)  # takes most of the time of a fit


def small(function: Callable[..., Any], **sizes: Any) -> Callable[..., Any]:
    """A function that takes no time: with other sizes, whatever it is called with."""
    return lambda *arguments, **options: function(*arguments, **{**options, **sizes})


@pytest.fixture
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/python.md assumes: a folder of images, and the time to train on it."""
    write_pictures(tmp_path / "root", ("clinic", "sketch"), each=3)
    (tmp_path / "new-place").symlink_to(tmp_path / "root" / "clinic")
    (tmp_path / "photo.jpg").symlink_to(tmp_path / "root/clinic/circle/0.png")
    tiny: dict[str, Any] = {"backbone": "resnet8", "image_size": 32, "batch": 2, "steps": 2, "evaluate_every": 1}
    sizes = {"fit": {"backbone": "lite0small", "minutes": 0.01}, "train": tiny}
    for command, own in sizes.items():
        monkeypatch.setattr(mecam, command, small(getattr(mecam, command), **own), raising=False)


@pytest.mark.parametrize("page", python_pages(), ids=name)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("own_parts")
def test_python_runs(page: Path, request: pytest.FixtureRequest) -> None:
    if page.name == "python.md":
        request.getfixturevalue("_own_folder")
    names = {"__name__": "page", **setting()}
    for number, block in enumerate(block for block in blocks(page) if block.language == "python"):
        exec(compile(block.code, f"{name(page)}, block {number}", "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_say_what_they_are(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= LANGUAGES
