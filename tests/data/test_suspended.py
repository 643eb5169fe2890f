"""A packer that was suspended for longer than its lease harms nobody's store."""

import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from mecam.data import _writing
from mecam.data import pack as packing
from mecam.data.open import open_data
from mecam.data.pack import pack
from mecam.progress import Event
from mecam.storage import claims, publishing
from mecam.storage.claims import acquire
from mecam.storage.publishing import leftovers
from tests.data.conftest import Decoded
from tests.data.folders import make_folder

fork = multiprocessing.get_context("fork")
IMAGE = 3 * 12 * 16  # bytes


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(_writing, "SHARD_BYTES", 2 * IMAGE)
    return make_folder(tmp_path / "data", each=5)


@contextmanager
def suspended(root: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BaseProcess]:
    """Suspend a packer in the middle of its work, for longer than its lease. It wakes in the end."""
    original = packing.resample

    def slow(*arguments: object, **options: object) -> object:
        time.sleep(0.02)
        return original(*arguments, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as slowly:
        slowly.setattr(packing, "resample", slow)
        child = fork.Process(target=pack, args=(root, out), kwargs={"workers": 1, "skip_unreadable": True})
        child.start()
    while len(list(out.parent.glob(f".{out.name}.packing*/shard-*"))) < 3:
        time.sleep(0.005)
    os.kill(child.pid or 0, signal.SIGSTOP)
    with monkeypatch.context() as expired:
        expired.setattr(claims, "STALE", 0.0)
        try:
            yield child
        finally:
            os.kill(child.pid or 0, signal.SIGCONT)
            child.join(10)
            child.kill()


def contents(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store.iterdir()}


@pytest.mark.attack("Several processes")
def test_it_does_not_write_into_the_store_of_another(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "store"
    whole = contents(pack(root, tmp_path / "undisturbed").path)
    with suspended(root, out, monkeypatch) as sleeper:
        pack(root, out)
        shutil.rmtree(root)
    assert contents(out) == whole
    assert sleeper.exitcode == 0, "the sleeper finds the store that it wanted"
    assert {path.name for path in tmp_path.iterdir()} == {"store", "undisturbed"}


@pytest.mark.attack("Several processes")
def test_it_does_not_publish_what_another_has_taken_over(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: Decoded
) -> None:
    """It wakes while the other still packs, and waits for it."""
    out, seen = tmp_path / "store", []
    whole = contents(pack(root, tmp_path / "undisturbed").path)
    before = len(decoded())
    with suspended(root, out, monkeypatch) as sleeper:

        def wake(event: Event) -> None:
            if event.task == "packing" and not seen:
                claims.STALE = 120.0  # undone with the fixture of the sleeper
                seen.append(leftovers(out))
                os.kill(sleeper.pid or 0, signal.SIGCONT)
                sleeper.join(0.3)

        pack(root, out, workers=1, progress=wake)
    assert [len(folders) for folders in seen] == [1], "the folder of the sleeper is inside that of the other"
    assert contents(out) == whole
    assert len(decoded()) - before < 40, "complete shards were copied"
    assert sleeper.exitcode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"data", "store", "undisturbed", "decoded.log"}


@pytest.mark.attack("Several processes")
def test_a_rename_does_not_replace_a_finished_store(root: Path, tmp_path: Path) -> None:
    """Both have packed all; the second to publish uses the store of the first."""
    out, publish = tmp_path / "store", publishing.publish
    inodes = []

    def late(folder: Path, place: Path, **options: Any) -> bool:
        shutil.copytree(folder, place)
        inodes.append((place / "data.bin").stat().st_ino)
        return publish(folder, place, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publishing, "publish", late)
        pack(root, out)
    assert inodes == [(out / "data.bin").stat().st_ino]
    assert not leftovers(out)


@pytest.mark.attack("Several processes")
def test_opening_removes_what_a_killed_packer_left(root: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    place = open_data(root, cache=cache).path  # type: ignore[attr-defined]
    left = place.parent / f".{place.name}.packing-{'0' * 16}"
    left.mkdir()
    other = place.parent / f".{place.name}-other.packing-{'0' * 16}"
    other.mkdir()
    with acquire(place.parent, f".{place.name}.claim"):
        open_data(root, cache=cache)
        assert left.exists(), "a packer at work keeps its folder"
    open_data(root, cache=cache)
    assert not left.exists()
    assert other.exists()
