"""Machines with peculiarities: each command works there, or ends with one clear line."""

import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest

import mecam
from mecam.storage import files
from tests.processes import SOURCE, run_each
from tests.serving.runs import TINY, write_images

pytestmark = pytest.mark.attack("Hosts")
SMALL = ("--target", "art", "--steps", "1", "--set", "batch=2", "--set", "image_size=8", "--set", "evaluate_every=1")
NOBODY = """
import pwd
def getpwuid(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = getpwuid
"""


def test_a_user_without_a_name_and_a_home(tmp_path: Path) -> None:
    """As in a container that runs under any uid."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NOBODY)
    path = f"{SOURCE}{os.pathsep}{tmp_path / 'site'}"
    nobody = {"PYTHONPATH": path, "HOME": "", "USER": "", "LOGNAME": "", "MECAM_CACHE": ""}
    write_images(tmp_path / "data")
    train = ("train", "--data", "data", "--target", "lab", *TINY, "--out", "other")
    *works, lacks, has = run_each(
        ("train", *SMALL, "--out", "out"), ("doctor",), ("report", "out"), ("export", "out", "--out", "e"),
        train, ("MECAM_CACHE=cache", *train),
        cwd=tmp_path, **nobody,
    )  # fmt: skip
    assert [of.code for of in (*works, has)] == [0] * 5, (works, has)
    assert (lacks.code, lacks.err.count("\n")) == (2, 1)
    assert "there is no such home folder; set $MECAM_CACHE to a folder for packed data" in lacks.err


def test_a_mask_that_hides_all_files(tmp_path: Path) -> None:
    commands = (("train", *SMALL, "--out", "out"), ("verify", "out"))
    done = run_each(*commands, cwd=tmp_path, before=lambda: os.umask(0o077) and None)
    assert [of.code for of in done] == [0, 0], done
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "out").rglob("*")} == {0}


def test_a_file_system_without_modes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As FAT, where chmod fails."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chmod", refuse)
    monkeypatch.setattr(os, "fchmod", refuse)
    files.write_atomic(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


@pytest.mark.parametrize("most", [16, 24])  # too few for the log of a benchmark, and enough
def test_few_descriptors(most: int, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    bench = ("bench", *SMALL, "--seeds", 0, "--workers", 2, "--out", "bench")
    commands = ("train", *SMALL, "--out", "out"), bench, ("report", "bench")
    *trained, reported = run_each(*commands, cwd=tmp_path, before=limit)
    for done in (*trained, reported):
        no_run = done is reported and trained[-1].code != 0 and "there is no run in bench" in done.err
        assert done.code == 0 or no_run or "Too many open files" in done.err, done.err


needs_setpriv = pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root writes everywhere"
)


# root without capabilities obeys modes, as any user
PLAIN_USER = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"] if os.geteuid() == 0 else []


@needs_setpriv
def test_folders_that_are_read_only(tmp_path: Path) -> None:
    mecam.train(target="art", steps=1, batch=2, image_size=8, evaluate_every=1, out=tmp_path / "run", device="cpu")
    write_images(tmp_path / "data")
    (tmp_path / "ro").mkdir()
    refused: list[tuple[object, ...]] = [
        ("train", *SMALL, "--out", "ro/out"),
        ("bench", *SMALL, "--seeds", 0, "--out", "ro/out"),
        ("report", "run", "--out", "ro/page.html"),
        ("curvature", "run", "--images", 4),
    ]
    works = [("verify", "run"), ("rerun", "run"), ("report", "run"), ("predict", "run", "data")]
    train = ("train", "--data", "data", "--target", "lab", *TINY, "--out", "other", "--quiet")
    for folder in ("run", "ro"):
        subprocess.run(["chmod", "-R", "a-w", tmp_path / folder], check=True)
    try:
        *ended, no_cache = run_each(
            *refused, *works, (f"MECAM_CACHE={tmp_path / 'ro' / 'cache'}", *train), cwd=tmp_path, launcher=PLAIN_USER
        )
    finally:
        subprocess.run(["chmod", "-R", "u+w", tmp_path / "run", tmp_path / "ro"], check=True)
    for done in ended[: len(refused)]:
        assert (done.code, done.err.count("\n")) == (2, 1), done.err
        assert "Permission denied" in done.err
    assert [done.code for done in ended[len(refused) :]] == [0] * len(works), ended
    assert (no_cache.code, "set $MECAM_CACHE to a folder that can be written" in no_cache.err) == (2, True)


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
