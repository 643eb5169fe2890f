"""Machines with peculiarities: each command works there, or ends with one clear line."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mecam.storage import files
from tests.serving.runs import TINY, write_images

pytestmark = pytest.mark.attack("Hosts")
SMALL = ("--target", "art", "--steps", "1", "--set", "batch=2", "--set", "image_size=8", "--set", "evaluate_every=1")
SOURCE = Path(files.__file__).parents[2]  # the package that the tests import
NOBODY = """
import pwd
def getpwuid(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = getpwuid
"""


def mecam(*words: object, cwd: Path, before: Callable[[], None] | None = None, **environment: str) -> tuple[int, str]:
    """Exit code and stderr of a real process."""
    surroundings = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "MECAM_CACHE": str(cwd / "cache")}
    surroundings |= environment
    done = subprocess.run(
        [sys.executable, "-m", "mecam.cli", *map(str, words)],
        cwd=cwd, env={k: v for k, v in surroundings.items() if v}, preexec_fn=before,
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_a_user_without_a_name_and_a_home(tmp_path: Path) -> None:
    """As in a container that runs under any uid."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NOBODY)
    path = f"{SOURCE}{os.pathsep}{tmp_path / 'site'}"
    nobody = {"PYTHONPATH": path, "HOME": "", "USER": "", "LOGNAME": "", "MECAM_CACHE": ""}
    for words in (("train", *SMALL, "--out", "out"), ("doctor",), ("report", "out"), ("export", "out", "--out", "e")):
        code, said = mecam(*words, cwd=tmp_path, **nobody)
        assert code == 0, said
    write_images(tmp_path / "data")
    train = ("train", "--data", "data", "--target", "lab", *TINY, "--out", "other")
    code, said = mecam(*train, cwd=tmp_path, **nobody)
    assert (code, said.count("\n")) == (2, 1)
    assert "there is no such home folder; set $MECAM_CACHE to a folder for packed data" in said
    assert mecam(*train, cwd=tmp_path, **{**nobody, "MECAM_CACHE": "cache"})[0] == 0


def test_a_mask_that_hides_all_files(tmp_path: Path) -> None:
    code, said = mecam("train", *SMALL, "--out", "out", cwd=tmp_path, before=lambda: os.umask(0o077) and None)
    assert code == 0, said
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "out").rglob("*")} == {0}
    assert mecam("verify", "out", cwd=tmp_path)[0] == 0


def test_a_file_system_without_modes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As FAT, where chmod fails."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chmod", refuse)
    monkeypatch.setattr(os, "fchmod", refuse)
    files.write_atomic(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


@pytest.mark.parametrize("most", [24, 64])
def test_few_descriptors(most: int, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    for words in (
        ("train", *SMALL, "--out", "out"),
        ("bench", *SMALL, "--seeds", 0, "--workers", 2, "--out", "bench"),
        ("report", "bench"),
    ):
        code, said = mecam(*words, cwd=tmp_path, before=limit)
        assert code == 0 or "Too many open files" in said, said


needs_setpriv = pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root writes everywhere"
)


def plain_user() -> None:
    """Root without capabilities obeys modes, as any user."""


def as_user(*words: object, cwd: Path, **environment: str) -> tuple[int, str]:
    if os.geteuid() != 0:
        return mecam(*words, cwd=cwd, **environment)
    command = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", sys.executable, "-m", "mecam.cli"]
    surroundings = {**os.environ, "PYTHONPATH": str(SOURCE), "MECAM_CACHE": str(cwd / "cache"), **environment}
    done = subprocess.run(
        [*command, *map(str, words)],
        cwd=cwd,
        env=surroundings,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@needs_setpriv
def test_folders_that_are_read_only(tmp_path: Path) -> None:
    assert mecam("train", *SMALL, "--out", "run", cwd=tmp_path)[0] == 0
    write_images(tmp_path / "data")
    (tmp_path / "ro").mkdir()
    for folder in ("run", "ro"):
        subprocess.run(["chmod", "-R", "a-w", tmp_path / folder], check=True)
    try:
        for words in (
            ("train", *SMALL, "--out", "ro/out"),
            ("bench", *SMALL, "--seeds", 0, "--out", "ro/out"),
            ("report", "run", "--out", "ro/page.html"),
            ("curvature", "run", "--images", 4),
        ):
            code, said = as_user(*words, cwd=tmp_path)
            assert (code, said.count("\n")) == (2, 1), said
            assert "Permission denied" in said
        for words in (("verify", "run"), ("rerun", "run"), ("report", "run"), ("predict", "run", "data")):
            code, said = as_user(*words, cwd=tmp_path)
            assert code == 0, said
        train = ("train", "--data", "data", "--target", "lab", *TINY, "--out", "other", "--quiet")
        code, said = as_user(*train, cwd=tmp_path, MECAM_CACHE=str(tmp_path / "ro" / "cache"))
        assert (code, "set $MECAM_CACHE to a folder that can be written" in said) == (2, True)
    finally:
        subprocess.run(["chmod", "-R", "u+w", tmp_path / "run", tmp_path / "ro"], check=True)


def test_what_killed_writers_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    left, fresh, other = (tmp_path / name for name in (".mecam-0123456789abcdef.part", ".mecam-1.part", ".part"))
    for file in (left, fresh, other):
        file.touch()
    os.utime(left, (1, 1))
    os.utime(other, (1, 1))
    files.write_atomic(tmp_path / "page.html", b"")
    assert not left.exists()
    assert fresh.exists(), "another process may be writing it"
    assert other.exists(), "not ours"
