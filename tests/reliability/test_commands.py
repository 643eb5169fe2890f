"""`mecam rerun`, `mecam verify` and `mecam data check` as users run them."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mecam.cli import app
from tests.serving.runs import TINY, write_images


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MECAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield write_images(tmp_path_factory.mktemp("data") / "images")


@pytest.fixture(scope="module")
def out(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    assert mecam("train", "--data", str(images), "--target", "lab", *TINY, "--quiet", "--out", str(out))[0] == 0
    return out


def mecam(*words: str) -> tuple[int, str]:
    """Exit code, and what was printed in all."""
    result = CliRunner().invoke(app, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_rerun(out: Path, tmp_path: Path) -> None:
    assert mecam("rerun", str(out)) == (0, "the same bytes: records, weights, predictions and result\n")
    (run,) = (file.parent for file in out.glob("*/run.json"))
    code, said = mecam("rerun", str(run), "--out", str(tmp_path))
    assert (code, said) == (0, "the same bytes: records, weights, predictions and result\n")
    assert (tmp_path / run.name / "done.json").exists()
    code, said = mecam("rerun", str(run), "--out", str(tmp_path))
    assert code == 2
    assert "has that run already, finished" in said


@pytest.mark.attack("Reruns")
def test_rerun_on_data_that_changed(images: Path, out: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(images, kept)
    try:
        for number in range(4):
            shutil.copy(images / "clinic" / "red" / "0.jpg", images / "clinic" / "blue" / f"{2 * number}.jpg")
        code, said = mecam("rerun", str(out))
    finally:
        shutil.rmtree(images)
        shutil.copytree(kept, images)
    assert code == 1
    assert "different: model.safetensors: " in said
    assert "different: done.json: " in said


@pytest.mark.attack("Damage")
def test_verify(out: Path, tmp_path: Path) -> None:
    assert mecam("verify", str(out)) == (0, "intact runs: 1, damaged: 0\n")
    (run,) = (file.parent for file in out.glob("*/run.json"))
    names = ("run.json", "sessions.jsonl", "records.jsonl", "model.safetensors", "predictions.safetensors", "done.json")
    for name in names:
        shutil.copytree(run, tmp_path / name / run.name)
        flip(tmp_path / name / run.name / name)
        code, said = mecam("verify", str(tmp_path / name), str(out))
        assert code == 1
        assert name in said.splitlines()[0]
        assert said.endswith("intact runs: 1, damaged: 1\n")
    code, said = mecam("verify", str(tmp_path / "nowhere"))
    assert (code, "there is no run in" in said) == (2, True)


@pytest.mark.attack("Damage")
def test_a_store_is_checked_to_the_last_byte(images: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert mecam("data", "pack", str(images), "--out", str(store), "--quiet")[0] == 0
    assert mecam("data", "check", str(store)) == (0, f"{store}: 48 images, all as they were packed\n")
    flip(store / "data.bin")
    code, said = mecam("data", "check", str(store))
    assert code == 2
    assert "data.bin is damaged: bytes" in said
