"""Atomic writes leave the old content or the new one; read errors name the file."""

import errno
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mecam.storage.files import RunError, clean, is_temporary, make_folder, read_json, write_atomic
from tests.runs.faults import PowerCuts, Real, before_each, failing, refusal_of

LIMITED = """
import resource, signal, sys
from mecam.runs import write_atomic
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
write_atomic(sys.argv[1], b"x" * 1000)
"""
UNMASKED = "import sys; from mecam.runs import write_atomic; write_atomic(sys.argv[1], b'')"


def test_the_content_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    for data in (b"first", b"", b"\0\xff" * 1000):
        write_atomic(tmp_path / "file", data)
        assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", data)]


def test_short_writes_are_continued(tmp_path: Path) -> None:
    def three_bytes(_name: str, real: Real, args: tuple[Any, ...]) -> Any:
        return real(args[0], args[1][:3])

    with before_each(three_bytes, ("write",)):
        write_atomic(tmp_path / "file", bytes(range(256)))
    assert (tmp_path / "file").read_bytes() == bytes(range(256))


def test_private_while_it_is_written_and_as_any_new_file_in_place(tmp_path: Path) -> None:
    modes = []

    def look(_name: str, real: Real, args: tuple[Any, ...]) -> Any:
        modes.append(stat.S_IMODE(os.fstat(args[0]).st_mode))
        return real(*args)

    with before_each(look, ("write",)):
        write_atomic(tmp_path / "file", b"secret")
    assert modes == [0o600]
    (tmp_path / "plain").touch()
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode
    for mask, mode in (("002", 0o664), ("077", 0o600)):
        script = f"umask {mask} && exec '{sys.executable}' -c \"{UNMASKED}\" '{tmp_path / mask}'"
        subprocess.run(["bash", "-c", script], check=True)
        assert stat.S_IMODE((tmp_path / mask).stat().st_mode) == mode


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_an_error_at_any_call_leaves_the_old_content_or_the_new_one(tmp_path: Path, error: int) -> None:
    kept, at = [], 0
    while True:
        at += 1
        write_atomic(tmp_path / "file", b"old")
        with before_each(failing(at, error)):
            refusal = refusal_of(lambda: write_atomic(tmp_path / "file", b"new"))
        if refusal is None:
            break
        assert str(tmp_path / "file") in refusal
        assert ("intact: make room" in refusal) == (error == errno.ENOSPC)
        assert [path.name for path in tmp_path.iterdir()] == ["file"]
        kept.append((tmp_path / "file").read_bytes())
    assert set(kept[:6]) == {b"old"}  # open, write, chmod, fsync, close, replace
    assert set(kept[6:]) == {b"new"}  # the folder's open, fsync, close


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs a limit on file sizes")
def test_a_refusal_by_the_system_itself(tmp_path: Path) -> None:
    write_atomic(tmp_path / "file", b"old")
    ended = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path / "file")], capture_output=True, text=True)
    assert "RunError: cannot write" in ended.stderr
    assert "File too large" in ended.stderr
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]


def test_an_interrupt_leaves_the_old_content(tmp_path: Path) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    write_atomic(tmp_path / "file", b"old")
    with pytest.raises(KeyboardInterrupt), before_each(interrupt, ("fsync",)):
        write_atomic(tmp_path / "file", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]


def test_a_power_cut_at_any_call_leaves_the_old_content_or_the_new_one(tmp_path: Path) -> None:
    write_atomic(tmp_path / "file", b"old")
    contents: list[bytes] = []
    disk = PowerCuts(tmp_path, lambda files: contents.append(files["file"]))
    with before_each(disk):
        write_atomic(tmp_path / "file", b"new")
    assert set(contents) == {b"old", b"new"}
    contents.clear()
    disk.cut()
    assert contents == [b"new"]


def test_unfinished_files_are_known_and_cleaned(tmp_path: Path) -> None:
    names = []

    def look(_name: str, real: Real, args: tuple[Any, ...]) -> Any:
        names.extend(path.name for path in tmp_path.iterdir() if is_temporary(path))
        return real(*args)

    with before_each(look, ("fsync",)):
        write_atomic(tmp_path / "file", b"data")
    assert len(names) == 1
    for name in (names[0], "part", ".part", "mine.part"):
        (tmp_path / name).touch()
    clean(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".part", "file", "mine.part", "part"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"", "not JSON"),
        (b'{"a": 1', "not JSON"),
        (b"\xff\xfe\0", "not JSON"),
        (b"\0" * 100, "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "holds a list"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "some.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(RunError, match=message) as refusal:
        read_json(file)
    assert str(file) in str(refusal.value)


def test_a_file_where_a_folder_is_needed_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below" / "it"):
        with pytest.raises(RunError, match="file is a file; a folder is needed"):
            make_folder(path)
