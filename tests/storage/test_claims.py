import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from mecam.storage import claims
from mecam.storage.claims import STALE, HeldError, Owner, acquire

ELSEWHERE = replace(Owner.here(), host="other", world="another machine", pid=1)


def put(folder: Path, number: int, owner: Owner | bytes, *, silent: float = 0.0) -> Path:
    """Write a claim whose last heartbeat was `silent` seconds ago."""
    path = folder / f"job-{number:06d}"
    path.write_bytes(owner if isinstance(owner, bytes) else json.dumps(asdict(owner)).encode())
    os.utime(path, (time.time() - silent,) * 2)
    return path


@pytest.fixture
def ended() -> Iterator[Owner]:
    """A process that was killed and not yet reaped by its parent."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        owner = replace(Owner.here(), pid=process.pid, started=claims._started(process.pid))
        assert not owner.is_gone()
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        yield owner


def test_one_at_a_time(tmp_path: Path) -> None:
    with acquire(tmp_path, "job") as first:
        with pytest.raises(HeldError, match=rf"process {os.getpid()} on .*, last heartbeat 0 s ago"):
            acquire(tmp_path, "job")
        with acquire(tmp_path, "other"):
            assert first.is_held()
    with acquire(tmp_path, "job") as second:
        assert second.number == 2
        assert second.is_held()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job-000002", "other-000001"]


def test_whether_a_claim_is_held_is_seen_without_a_trace(tmp_path: Path, ended: Owner) -> None:
    assert not claims.is_held(tmp_path, "job")
    with acquire(tmp_path, "job"):
        before = sorted(tmp_path.iterdir())
        assert claims.is_held(tmp_path, "job")
        assert sorted(tmp_path.iterdir()) == before
    assert not claims.is_held(tmp_path, "job")
    put(tmp_path, 7, ELSEWHERE)
    assert claims.is_held(tmp_path, "job")
    put(tmp_path, 8, ELSEWHERE, silent=STALE + 60)
    assert not claims.is_held(tmp_path, "job")
    put(tmp_path, 9, ended)
    assert not claims.is_held(tmp_path, "job")


def test_a_removed_claim_leaves_no_file(tmp_path: Path) -> None:
    acquire(tmp_path, "job").release(remove=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.attack("Several processes")
def test_a_dead_owner_holds_nothing(tmp_path: Path, ended: Owner) -> None:
    put(tmp_path, 7, ended)
    assert acquire(tmp_path, "job").number == 8


@pytest.mark.attack("Several processes")
def test_a_reused_pid_holds_nothing(tmp_path: Path) -> None:
    here = Owner.here()
    put(tmp_path, 1, replace(here, started=(here.started or 0) - 1))
    acquire(tmp_path, "job")


@pytest.mark.attack("Several processes")
@pytest.mark.parametrize("owner", [ELSEWHERE, b"", b"{", b"[]", b'{"pid": "x"}'])
def test_an_unreachable_owner_holds_the_claim_until_it_is_stale(tmp_path: Path, owner: Owner | bytes) -> None:
    put(tmp_path, 1, owner, silent=STALE - 20)
    with pytest.raises(HeldError, match="stale after"):
        acquire(tmp_path, "job")
    put(tmp_path, 1, owner, silent=STALE + 20)
    assert acquire(tmp_path, "job").number == 2


def test_an_owner_sends_heartbeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "HEARTBEAT", 0.01)
    with acquire(tmp_path, "job") as held, acquire(tmp_path, "other") as other:
        for claim in (held, other):
            os.utime(claim.path, (0, 0))
            while claim.path.stat().st_mtime == 0:  # the test's own time limit ends this
                time.sleep(0.01)


@pytest.mark.attack("Several processes")
def test_a_suspended_owner_sees_that_another_has_taken_over(tmp_path: Path) -> None:
    held = acquire(tmp_path, "job")
    held.released.set()  # no more heartbeats
    held.path.write_bytes(json.dumps(asdict(ELSEWHERE)).encode())  # as seen from another machine
    os.utime(held.path, (0, 0))
    with acquire(tmp_path, "job") as taker:
        assert not held.is_held()
        with pytest.raises(RuntimeError, match="another process has taken over"):
            held.require(tmp_path, RuntimeError)
        held.release()
        assert taker.is_held()
        with pytest.raises(HeldError):
            acquire(tmp_path, "job")


@pytest.mark.attack("Several processes")
def test_one_of_many_contenders_wins(tmp_path: Path) -> None:
    for number in range(1, 30):
        put(tmp_path, number, ELSEWHERE, silent=2 * STALE)
        won: list[claims.Claim] = []
        start = threading.Barrier(8)

        def take(start: threading.Barrier = start, won: list[claims.Claim] = won) -> None:
            start.wait()
            try:
                won.append(acquire(tmp_path, "job"))
            except HeldError:
                return

        threads = [threading.Thread(target=take) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [claim.number for claim in won] == [number + 1]
        won[0].release(remove=True)


@pytest.mark.attack("Several processes")
def test_a_contender_with_an_outdated_listing_gives_its_number_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others take, release and sweep between its check of a stale claim and its own."""
    put(tmp_path, 3, ELSEWHERE, silent=2 * STALE)
    require, later = claims._require_free, ExitStack()

    def slow(path: Path, now: float, **options: bool) -> None:
        require(path, now, **options)
        monkeypatch.setattr(claims, "_require_free", require)
        for _ in range(3):
            acquire(tmp_path, "job").release()
        later.enter_context(acquire(tmp_path, "job"))

    monkeypatch.setattr(claims, "_require_free", slow)
    with later:
        with pytest.raises(HeldError):
            acquire(tmp_path, "job")
        assert [path.name for path in tmp_path.glob("job-*")] == ["job-000007"]


@pytest.mark.attack("Several processes")
@pytest.mark.parametrize("done", [False, True])
def test_file_systems_without_hard_links_or_with_lost_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    link = os.link

    def refuse(source: Any, target: Any) -> None:
        if done:
            link(source, target)
        raise OSError(errno.EIO if done else errno.EPERM, "refused")

    monkeypatch.setattr(os, "link", refuse)
    with acquire(tmp_path, "job"), pytest.raises(HeldError):
        acquire(tmp_path, "job")
    assert [path.name for path in tmp_path.iterdir()] == ["job-000001"]


@pytest.mark.attack("Several processes")
def test_staging_folders_of_earlier_claims_are_removed_and_no_others(tmp_path: Path) -> None:
    put(tmp_path, 6, ELSEWHERE, silent=2 * STALE)
    earlier, later, other = (
        tmp_path / f".{name}-{'0' * 16}" for name in ("job-000006", "job-000008", "another-000001")
    )
    for path in (earlier, later, other, tmp_path / f".job-000002-{'1' * 16}.old"):
        path.mkdir()
        (path / "file").touch()
    with acquire(tmp_path, "job") as held:
        names = {later.name, other.name, held.staging.name, "job-000007"}
        assert {path.name for path in tmp_path.iterdir()} == names
    assert {path.name for path in tmp_path.iterdir()} == names - {held.staging.name}


@pytest.mark.attack("Several processes")
def test_a_suspended_owner_can_neither_write_nor_remove(tmp_path: Path) -> None:
    """Wherever it wakes: a file that it prepared cannot take its place, and none that it removes is removed."""
    held = acquire(tmp_path, "job")
    held.released.set()  # no more heartbeats
    (held.staging / "prepared").touch()
    os.utime(put(tmp_path, held.number, ELSEWHERE), (0, 0))
    kept = tmp_path / "kept"
    kept.write_bytes(b"of its successor")
    with acquire(tmp_path, "job"):
        for act in (
            lambda: os.replace(held.staging / "prepared", kept),
            lambda: os.replace(kept, held.staging / "removed"),
            lambda: (held.staging / "new").touch(),
        ):
            with pytest.raises(FileNotFoundError):
                act()
        held.release()
        assert kept.read_bytes() == b"of its successor"


@pytest.mark.attack("Several processes")
def test_an_owner_suspended_while_taking_over_gets_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It wakes when another process has taken the number, and the staging folder with it."""
    link = claims._link

    def slow(*args: Any) -> bool:
        monkeypatch.setattr(claims, "_link", link)
        later.enter_context(acquire(tmp_path, "job"))
        return link(*args)

    monkeypatch.setattr(claims, "_link", slow)
    with ExitStack() as later, pytest.raises(HeldError):
        acquire(tmp_path, "job")
    assert [path.name for path in tmp_path.iterdir()] == ["job-000001"]


@pytest.mark.attack("Several processes")
def test_a_claim_dated_in_the_future_becomes_stale(tmp_path: Path) -> None:
    path = put(tmp_path, 1, ELSEWHERE, silent=-1e6)
    with pytest.raises(HeldError, match="last heartbeat 0 s ago"):
        acquire(tmp_path, "job")
    assert path.stat().st_mtime <= time.time()  # so it expires as any other
    os.utime(path, (time.time() - STALE - 20,) * 2)
    assert acquire(tmp_path, "job").number == 2


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        acquire(tmp_path / "nowhere", "job")
