"""A torchvision that was built for another torch: what users type runs, in processes without help from the suite."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.serving.runs import write_images

EXAMPLES = Path(__file__).parents[1] / "examples"
MECAM = [sys.executable, "-m", "mecam.cli"]
SMALL = ("--steps", "2", "--set", "batch=4", "--set", "image_size=32", "--set", "evaluate_every=2", "--device", "cpu")


def run(words: list[str], folder: Path, *, first: Path | None = None) -> str:
    """What a program prints; modules in `first` come before those that are installed."""
    paths = [str(first)] if first else []
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]).strip(os.pathsep),
        "MECAM_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        words, cwd=folder, env=variables, capture_output=True, text=True, timeout=200, check=False, errors="replace"
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def torchvision(folder: Path, *, library: Path | None = None) -> Path:
    """A package of that name that fails on import as the real one does, and its library; without: none that loads."""
    package = folder / "torchvision"
    package.mkdir()
    lines = (f"torch.library.register_fake('torchvision::{name}')(lambda *_: None)" for name in ("nms", "qnms"))
    (package / "__init__.py").write_text("\n".join(["import torch", *lines]))
    if library is None:
        (package / "_C.so").write_text("not a library")
    else:
        (package / "_C.so").symlink_to(library)
    return folder


def test_train_on_a_backbone_of_timm(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images")
    words = ["train", "--data", str(images), "--target", "lab", "--backbone", "timm/resnet18", "--no-pretrained"]
    assert "accuracy on lab" in run([*MECAM, *words, *SMALL, "--out", "runs"], tmp_path)


@pytest.mark.parametrize(
    ("example", "says"),
    [
        ("lightning_module.py", [r"accuracy on the unseen domain .* [01]\.\d+"]),
        (
            "timm_backbone.py",
            [
                r"^timm/resnet10t: 512 features, MixStyle after featurizer\.",
                r"^accuracy on sketch, which was not trained on: \d+\.\d %$",
            ],
        ),
    ],
)
def test_examples_typed_by_hand(example: str, says: list[str], tmp_path: Path) -> None:
    printed = run([sys.executable, str(EXAMPLES / example), "1"], tmp_path)
    assert [line for line in says if not re.search(line, printed, flags=re.MULTILINE)] == []


def test_doctor_says_that_mecam_works_around_it(tmp_path: Path) -> None:
    printed = run([*MECAM, "doctor"], tmp_path, first=torchvision(tmp_path))
    (line,) = (line for line in printed.splitlines() if "the torchvision that is installed" in line)
    assert "was not built for torch" in line
    assert "mecam works around it" in line


ABSENT = "import mecam._torchvision as m; m.find_spec = lambda _: None"
ASK = "import torch, mecam; print(mecam.repair_torchvision(), hasattr(torch.ops.torchvision, 'nms'))"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param(f"{ASK}; import torchvision; {ASK}", "True True\nTrue True", id="library does not load"),
        pytest.param(f"{ABSENT}; {ASK}", "False False", id="absent"),
    ],
)
def test_the_message_of_repair(code: str, expected: str, tmp_path: Path) -> None:
    assert run([sys.executable, "-c", code], tmp_path, first=torchvision(tmp_path)).strip() == expected


def test_operators_are_left_to_a_library_that_loads(tmp_path: Path) -> None:
    """To declare an operator that the library then defines would abort the process."""
    library = Path(np._core._multiarray_umath.__file__)  # type: ignore[attr-defined]
    assert run([sys.executable, "-c", ASK], tmp_path, first=torchvision(tmp_path, library=library)) == "False False\n"
