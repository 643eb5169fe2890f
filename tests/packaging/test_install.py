"""The wheel, built from the sdist, works in environments that hold what it asks for and nothing else.

Installing torch anew takes minutes, so an environment is made of links to the distributions of this one: those that
the wheel's metadata requires, and what they require in turn. pip then installs the wheel without an index, and so
refuses it if anything is missing.
"""

import os
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
LOOP = """
import torch
import mecam.virtual
from mecam.optim import SAM

torch.manual_seed(0)
inputs, model = torch.randn(64, 3), torch.nn.Linear(3, 1)
targets = inputs.sum(1, keepdim=True)
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, model=model)

def closure():
    optimizer.zero_grad()
    loss = (model(inputs) - targets).square().mean()
    loss.backward()
    return loss

for _ in range(30):
    loss = optimizer.step(closure)
print(float(loss))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)])
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def light(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment made by `pip install mecam`."""
    return _environment(tmp_path_factory.mktemp("light"), wheel)


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment made by `pip install 'mecam[cli]'`."""
    return _environment(tmp_path_factory.mktemp("environment"), wheel, "cli")


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    kept = [p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src").rglob("*") if p.is_file()]
    wanted = {name for name in kept if "__pycache__" not in name}
    assert {name for name in names if ".dist-info/" not in name} == wanted
    assert {"mecam/py.typed", "mecam/report/page.html", "mecam/published/accuracy.csv"} <= names


def test_the_sdist_holds_what_a_clone_does(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "SECURITY.md"} <= names
    assert {"tests/conftest.py", "docs/architecture.md", "examples/plain_loop.py", "recipes/table3.toml"} <= names


def test_only_torch_comes_along(wheel: Path) -> None:
    assert _requirements(wheel) == ["torch>=2.6"]
    assert not {"numpy", "scipy", "pillow", "rich", "typer"} & set(_closure(_requirements(wheel)))
    with_command = set(_closure(_requirements(wheel, "cli")))
    assert {"numpy", "scipy", "pillow", "rich", "typer"} <= with_command
    assert not {"matplotlib", "timm", "ray", "lightning", "onnx", "plotly"} & with_command


def test_optimizers_and_virtual_domains_need_torch_alone(light: Path, tmp_path: Path) -> None:
    assert float(_run([str(light / "python"), "-W", "error::FutureWarning", "-c", LOOP], tmp_path)) < 0.2


def test_the_command_names_its_extra(light: Path, tmp_path: Path) -> None:
    _run([str(light / "mecam"), "list"], tmp_path, fails_with=(
        2, "mecam: the command line needs more packages: pip install 'mecam[cli]' (missing: numpy, PIL, rich, "
    ))  # fmt: skip
    script = "import mecam; mecam.train"
    _run([str(light / "python"), "-c", script], tmp_path, fails_with=(1, "pip install 'mecam[cli]'"))


def test_a_model_is_trained_and_used(environment: Path, tmp_path: Path) -> None:
    mecam, out = str(environment / "mecam"), tmp_path / "model"
    options = ["--optimizer", "mecam", "--target", "sketch", "--steps", "2", "--out", str(out), "--device", "cpu"]
    trained = _run([mecam, "train", *options], tmp_path)
    assert "accuracy on sketch, which was not trained on: " in trained
    (done,) = out.glob("*/done.json")
    assert trained.splitlines()[-1] == str(done.parent)
    where = _run([str(environment / "python"), "-c", "import mecam; print(mecam.__file__)"], tmp_path)
    assert where.startswith(str(environment.parent))


def _environment(home: Path, wheel: Path, extra: str = "") -> Path:
    """Install the wheel into a new environment; return the folder of its programs."""
    _run([sys.executable, "-m", "venv", "--without-pip", str(home)])
    (packages,) = home.glob("lib/python*/site-packages")
    for found in _closure(_requirements(wheel, extra)).values():
        _link(found, packages)
    install = ["install", "--quiet", "--no-index", "--no-compile", f"{wheel}[{extra}]" if extra else str(wheel)]
    _run([sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), *install])
    return home / "bin"


def _requirements(wheel: Path, extra: str = "") -> list[str]:
    """Return what the wheel asks for."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        headers = HeaderParser().parsestr(archive.read(metadata).decode())
    texts = headers.get_all("Requires-Dist", [])
    return [text for text in texts if "extra ==" not in text or text.endswith(f"extra == '{extra}'")]


def _closure(requirements: list[str]) -> dict[str, Distribution]:
    """Return the distributions that meet the requirements, and those that these require, by name."""
    found: dict[str, Distribution] = {}
    waiting = [Requirement(text.partition(";")[0]) for text in requirements]
    while waiting:
        wanted = waiting.pop()
        if wanted.name in found or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        found[wanted.name] = distribution(wanted.name)
        waiting += [Requirement(text) for text in found[wanted.name].requires or []]
    return found


def _link(found: Distribution, packages: Path) -> None:
    """Link every folder and file of the distribution that lies directly in site-packages."""
    tops = {file.parts[0] for file in found.files or [] if file.parts[0] not in ("..", "__pycache__")}
    for top in tops:
        place = packages / top
        if not place.is_symlink():
            place.symlink_to(Path(str(found.locate_file(top))))


def _run(command: list[str], folder: Path | None = None, fails_with: tuple[int, str] = (0, "")) -> str:
    """Run it as if from a shell that knows nothing of this environment; return what it prints."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    if folder is not None:
        variables["MECAM_CACHE"] = str(folder / "cache")
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=240)
    code, message = fails_with
    assert done.returncode == code, done.stdout + done.stderr
    assert message in done.stderr
    return done.stdout
