"""A user's program passes strict type checkers."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
CACHE = SRC.parent / ".mypy_cache" / "user_types"  # of torch, whose types take most of the time
PROGRAM = """
import torch
from torch import Tensor, nn

from mecam.optim import SAM, MeCAM, RhoSchedule, SharpnessAware, capture, cosine, create
from mecam.virtual import MixStyle

model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(2))
style = MixStyle(p=1.0, alpha=0.1).attach(model, ["0"])
optimizer = MeCAM(
    model.parameters(), torch.optim.Adam, lr=1e-3, rho=0.1, alpha=0.2, virtual_domain=style, model=model, clip_norm=1.0
)
migrated = SAM(model.parameters(), torch.optim.SGD, 0.05, adaptive=True, lr=0.1, momentum=0.9, nonfinite="skip")
by_name: SharpnessAware = create("gsam", model.parameters(), base="sgd", lr=0.1)
schedule = RhoSchedule(optimizer, cosine(steps=10))


def closure() -> Tensor:
    optimizer.zero_grad()
    loss: Tensor = model(torch.ones(2, 3, 8, 8)).square().mean()
    torch.autograd.backward(loss)
    return loss


loss: Tensor = optimizer.step(closure)
schedule.step()
count: int | Tensor = optimizer.skipped


def loss_of(inputs: Tensor) -> Tensor:
    loss: Tensor = model(inputs).square().mean()
    return loss


step = capture(optimizer, loss_of)
captured: Tensor = step(torch.ones(2, 3, 8, 8))
reason: str | None = step.reason
"""
WRONG = PROGRAM.replace('nonfinite="skip"', 'nonfinite="skips"').replace("clip_norm=1.0", 'clip_norm="1"')


@pytest.fixture
def programs(tmp_path: Path) -> list[str]:
    (tmp_path / "right.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    return [str(tmp_path / "right.py"), str(tmp_path / "wrong.py")]


def run(words: list[str], cwd: Path) -> str:
    environment = {"MYPYPATH": str(SRC), "PATH": os.environ["PATH"]}
    return subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False).stdout


def test_mypy_strict(programs: list[str], tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    options = ["--strict", "--no-error-summary", "--cache-dir", str(CACHE)]
    errors = run([sys.executable, "-m", "mypy", *options, *programs], tmp_path).splitlines()
    assert len(errors) == 2, errors
    assert all("wrong.py" in line for line in errors)


def test_pyright_strict(programs: list[str], tmp_path: Path) -> None:
    pyright = shutil.which("pyright")
    if pyright is None:
        pytest.skip("needs pyright (npm install --global pyright)")
    settings = {"extraPaths": [str(SRC)], "typeCheckingMode": "strict"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    report = json.loads(run([pyright, "--outputjson", "--pythonpath", sys.executable, *programs], tmp_path))
    errors = [each["file"] for each in report["generalDiagnostics"] if each["severity"] == "error"]
    assert len(errors) == 2, report
    assert all(file.endswith("wrong.py") for file in errors)
