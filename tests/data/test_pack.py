"""Packing: what comes out is what was in the folder, whatever happens in between."""

import contextlib
import itertools
import json
import multiprocessing
import os
import pickle
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mecam.data import _writing
from mecam.data import decode as decoding
from mecam.data import pack as packing
from mecam.data.decode import resample
from mecam.data.domains import DataError
from mecam.data.folder import scan
from mecam.data.open import open_data
from mecam.data.pack import pack
from mecam.data.store import Store, for_sources
from mecam.progress import Event
from mecam.storage.files import RunError
from mecam.storage.publishing import leftovers
from tests.data.conftest import Decoded
from tests.data.folders import make_folder, pixels_of, save

fork = multiprocessing.get_context("fork")
IMAGE = 3 * 12 * 16  # bytes


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_writing, "SHARD_BYTES", 2 * IMAGE)


def slow_down(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    original = packing.resample

    def resample(*arguments: Any, **options: Any) -> Any:
        time.sleep(seconds)
        return original(*arguments, **options)

    monkeypatch.setattr(packing, "resample", resample)


def contents(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store.iterdir()}


def assert_is(store: Store, root: Path) -> None:
    """The store holds what Pillow alone reads from the folder."""
    found = scan(root)
    assert (store.domains, store.classes) == (found.domains, found.classes)
    for domain, files in enumerate(found.files):
        assert store.labels(domain).tolist() == found.labels(domain).tolist()
        assert [store.sample_name(domain, index) for index in range(len(files))] == list(files)
        expected = np.stack([pixels_of(root / file) for file in files])
        assert np.array_equal(store.images(domain, range(len(files))).numpy(), expected)
    store.verify()


@pytest.mark.parametrize("mode", ["decoded", "encoded"])
@pytest.mark.parametrize("workers", [1, 4])
def test_a_store_holds_the_folder(tmp_path: Path, mode: Any, workers: int) -> None:
    root = make_folder(tmp_path / "data", each=5)
    store = pack(root, tmp_path / "store", mode=mode, workers=workers)
    assert store.mode == mode
    assert (store.name, store.size) == ("data", (12, 16))
    assert_is(store, root)
    assert sorted(os.listdir(tmp_path)) == ["data", "store"], "nothing else may stay behind"
    assert sorted(os.listdir(store.path)) == ["data.bin", "index.bin", "names.bin", "store.json"]


def test_the_same_data_give_the_same_fingerprint_in_any_form(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "data")
    prints = {pack(root, tmp_path / mode, mode=mode).fingerprint for mode in ("decoded", "encoded")}  # type: ignore[arg-type]
    assert len(prints) == 1
    save(root / "art/cat/0000.png", np.zeros((12, 16, 3), dtype=np.uint8))
    assert pack(root, tmp_path / "changed").fingerprint not in prints


def test_auto_stores_bytes_where_pixels_would_be_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_folder(tmp_path / "data")
    for limit, mode in ((12 * IMAGE, "decoded"), (12 * IMAGE - 1, "encoded")):
        monkeypatch.setattr(packing, "PIXEL_LIMIT", limit)
        assert pack(root, tmp_path / mode).mode == mode


@pytest.mark.parametrize("mode", ["decoded", "encoded"])
def test_images_that_differ_in_size_become_squares(tmp_path: Path, mode: Any) -> None:
    root = make_folder(tmp_path / "data")
    odd = np.random.default_rng(1).integers(0, 256, (90, 40, 3), dtype=np.uint8)
    save(root / "art/dog/0001.png", odd)
    store = pack(root, tmp_path / "store", mode=mode, side=32)
    assert store.size == (32, 32)
    assert store.aspects(0).tolist() == pytest.approx([16 / 12] * 4 + [40 / 90, 16 / 12])
    expected = Image.fromarray(odd).resize((32, 32), Image.Resampling.BILINEAR)
    assert np.array_equal(store.images(0, [4])[0].permute(1, 2, 0).numpy(), np.asarray(expected))


@pytest.mark.attack("What a number means")
@pytest.mark.parametrize("mode", ["decoded", "encoded"])
def test_the_size_of_sources_does_not_depend_on_the_target(tmp_path: Path, mode: Any) -> None:
    """An image of the target with another size leaves every pixel that is trained on as it was."""
    root = make_folder(tmp_path / "data")
    usual = pack(root, tmp_path / "usual", mode=mode)
    random = np.random.default_rng(1)
    save(root / "photo/cat/0000.png", random.integers(0, 256, (9, 21, 3), dtype=np.uint8))
    odd = pack(root, tmp_path / "odd", mode=mode, side=32)
    assert odd.sizes == ((12, 16), (32, 32))
    assert for_sources(usual, [0]) is usual
    without_photo = for_sources(odd, [0])
    assert without_photo.size == (12, 16)
    everything = range(6)
    assert without_photo.images(0, everything).equal(usual.images(0, everything))
    assert without_photo.images(1, [3]).shape == (1, 3, 12, 16)
    assert pickle.loads(pickle.dumps(without_photo)).images(0, [1]).equal(usual.images(0, [1]))
    # together, and where the sources differ, all have the size of the squares, by one resampling of the file
    assert odd.size == for_sources(odd, [0, 1]).size == for_sources(without_photo, [0, 1]).size == (32, 32)
    names = [odd.sample_name(domain, index) for domain in range(2) for index in everything]
    expected = np.stack([resample(root / name, name=name, size=(32, 32)).pixels.transpose(2, 0, 1) for name in names])
    assert np.array_equal(np.concatenate([odd.images(domain, everything) for domain in range(2)]), expected)
    odd.verify()


def test_images_larger_than_the_side_become_squares(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "data", size=(12, 16))
    assert pack(root, tmp_path / "store", side=15).size == (15, 15)
    assert pack(root, tmp_path / "default").size == (12, 16)


def test_the_size_is_that_of_the_upright_image(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "data", size=(12, 16))
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    Image.fromarray(np.zeros((16, 12, 3), dtype=np.uint8)).save(root / "art/cat/0000.png", exif=exif)
    store = pack(root, tmp_path / "store")
    assert store.size == (12, 16)
    assert store.aspects(0)[0] == pytest.approx(16 / 12)


def test_packing_twice_does_nothing_the_second_time(tmp_path: Path, decoded: Decoded) -> None:
    root = make_folder(tmp_path / "data")
    first = pack(root, tmp_path / "store")
    before = contents(first.path)
    assert len(decoded()) == 12
    assert pack(root, tmp_path / "store").fingerprint == first.fingerprint
    assert contents(first.path) == before
    assert len(decoded()) == 12


def test_what_is_in_the_way_is_never_overwritten(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "data")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(DataError, match=r"mine exists and is not a store"):
        pack(root, tmp_path / "mine")
    store = pack(root, tmp_path / "store")
    before = contents(store.path)
    save(root / "art/cat/0000.png", np.zeros((12, 16, 3), dtype=np.uint8))
    with pytest.raises(DataError, match=r"store is a store of other data, of the data before a change"):
        pack(root, tmp_path / "store")
    assert contents(store.path) == before
    (tmp_path / "empty").mkdir()
    assert len(pack(root, tmp_path / "empty")) == 12


def test_a_store_may_not_pass_for_a_domain_of_its_data(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "data")
    (tmp_path / "link").symlink_to(root)
    for out in (root, root / "store", root / "art/cat/store", tmp_path / "link" / "store"):
        with pytest.raises(DataError, match=r"lies in .*, and would be read as images; give an --out outside"):
            pack(root, out)
    assert len(pack(root, root / ".cache" / "store")) == 12
    assert_is(pack(root, tmp_path / "store"), root)


class TestBadFolders:
    """What a user may give by mistake: what is wrong, what was expected, what to do."""

    @pytest.mark.parametrize(
        ("without", "message"),
        [
            (
                ("art", "photo"),
                "data has no folders in it; expected root/<domain>/<class>/<image>; give the folder that holds a "
                "folder for each domain",
            ),
            (("photo/dog",), "'photo' has no images of 'dog'. Add the images, or remove the class everywhere"),
        ],
    )
    def test_it_is_refused_and_nothing_is_written(self, without: list[str], message: str, tmp_path: Path) -> None:
        root = make_folder(tmp_path / "data")
        for folder in without:
            shutil.rmtree(root / folder)
        with pytest.raises(DataError, match=message) as caught:
            pack(root, tmp_path / "store")
        assert not (tmp_path / "store").exists()
        with pytest.raises(DataError, match=re.escape(str(caught.value))):
            open_data(root, cache=tmp_path / "cache")

    def test_a_class_that_a_domain_lacks_may_be_allowed(self, tmp_path: Path) -> None:
        root = make_folder(tmp_path / "data")
        shutil.rmtree(root / "photo/dog")
        store = pack(scan(root, allow_missing_classes=True), tmp_path / "store")
        assert store.labels(1).tolist() == [0, 0, 0]

    def test_links_in_a_circle_are_passed_over(self, tmp_path: Path) -> None:
        root = make_folder(tmp_path / "data")
        whole = contents(pack(root, tmp_path / "undisturbed").path)
        (root / "photo/dog/loop").symlink_to("../..")
        (root / "art/cat/self.png").symlink_to("self.png")
        (root / "self").symlink_to("self")
        assert contents(pack(root, tmp_path / "store").path) == whole


class TestUnreadableImages:
    def test_images_that_need_a_package_are_counted_and_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "pillow_heif", None)
        root = make_folder(tmp_path / "data")
        for number in range(2):
            (root / f"art/dog/{number}.HEIC").write_bytes(b"\0\0\0\x1cftypheic\0\0\0\0mif1heic" + bytes(100))
        with pytest.raises(DataError, match=r"2 images of data cannot be read; (?s:.*)pip install pillow-heif"):
            pack(root, tmp_path / "store")
        skipped = pack(root, tmp_path / "store", skip_unreadable=True).skipped
        assert [image.name for image in skipped] == ["art/dog/0.HEIC", "art/dog/1.HEIC"]

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        root = make_folder(tmp_path / "data")
        whole = (root / "art/dog/0001.png").read_bytes()
        (root / "art/dog/0001.png").write_bytes(whole[: len(whole) // 2])
        (root / "photo/cat/0002.png").write_bytes(b"")
        (root / "photo/cat/0001.png").write_text("<html>404</html>")
        return root

    def test_all_are_named_and_refused(self, root: Path, tmp_path: Path) -> None:
        with pytest.raises(DataError) as caught:
            pack(root, tmp_path / "store")
        message = str(caught.value)
        assert message.startswith("3 images of data cannot be read")
        assert all(name in message for name in ("art/dog/0001.png", "photo/cat/0002.png", "photo/cat/0001.png"))
        assert "--skip-unreadable of mecam fit, mecam train, mecam bench and mecam data pack" in message
        assert "whose store (its --out) is then given as --data" in message
        assert "skip_unreadable=True:\n" in message
        assert [line.split()[0] for line in message.splitlines()[1:]] == [
            "art/dog/0001.png",
            "photo/cat/0001.png",
            "photo/cat/0002.png",
        ]
        assert not (tmp_path / "store").exists()

    @pytest.mark.parametrize("mode", ["decoded", "encoded"])
    def test_skipped_ones_are_listed(self, root: Path, tmp_path: Path, mode: Any) -> None:
        store = pack(root, tmp_path / "store", mode=mode, skip_unreadable=True)
        assert [image.name for image in store.skipped] == [
            "art/dog/0001.png",
            "photo/cat/0001.png",
            "photo/cat/0002.png",
        ]
        assert "0 bytes" in store.skipped[2].reason
        assert [len(store.labels(domain)) for domain in (0, 1)] == [5, 4]
        for name in ("art/dog/0001.png", "photo/cat/0001.png", "photo/cat/0002.png"):
            (root / name).unlink()
        assert_is(store, root)

    def test_skipping_after_a_refusal_decodes_nothing_again(self, root: Path, tmp_path: Path, decoded: Decoded) -> None:
        with pytest.raises(DataError):
            pack(root, tmp_path / "store")
        assert len(decoded()) == 12
        assert len(pack(root, tmp_path / "store", skip_unreadable=True)) == 9
        assert len(decoded()) == 12

    def test_a_store_that_skipped_some_is_refused_where_none_may_be(self, root: Path, tmp_path: Path) -> None:
        pack(root, tmp_path / "store", skip_unreadable=True)
        with pytest.raises(DataError, match=r"3 images of data cannot be read"):
            pack(root, tmp_path / "store")

    def test_the_last_images_of_a_class_cannot_be_skipped(self, root: Path, tmp_path: Path) -> None:
        (root / "photo/cat/0000.png").write_bytes(b"also broken")
        with pytest.raises(DataError, match=r"no image of 'cat' in 'photo' can be read.*photo/cat/0000.png"):
            pack(root, tmp_path / "store", skip_unreadable=True)


class TestInterruption:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return make_folder(tmp_path / "data", each=5)

    @pytest.fixture
    def whole(self, root: Path, tmp_path: Path) -> dict[str, bytes]:
        """What an undisturbed pack gives; header and all."""
        return contents(pack(root, tmp_path / "undisturbed", workers=2).path)

    def kill_after(self, shards: int, root: Path, out: Path, mode: Any = "decoded") -> Path:
        """Pack in another process, and kill it when this many shards are complete. Return the folder of its work."""
        before = set(leftovers(out))
        child = fork.Process(target=pack, args=(root, out), kwargs={"mode": mode, "workers": 2})
        child.start()
        try:
            for _ in range(2000):
                work = next((folder for folder in leftovers(out) if folder not in before), out)
                if len(list(work.glob("shard-*"))) >= shards:
                    break
                time.sleep(0.005)
        finally:
            os.kill(child.pid or 0, signal.SIGKILL)
            child.join()
        assert child.exitcode == -signal.SIGKILL
        assert not out.exists()
        return work

    @pytest.mark.parametrize("mode", ["decoded", "encoded"])
    def test_after_a_kill_complete_shards_are_kept(
        self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: Decoded, mode: Any
    ) -> None:
        whole = contents(pack(root, tmp_path / "undisturbed", mode=mode).path)
        with monkeypatch.context() as slow:
            slow_down(slow, 0.02)
            self.kill_after(3, root, tmp_path / "store", mode)
            work = self.kill_after(6, root, tmp_path / "store", mode)
        shards = [json.loads(mark.read_bytes()) for mark in work.glob("shard-*")]
        complete = sum(len(bytes.fromhex(shard["pictures"])) // 16 for shard in shards)
        assert complete >= 6
        before = len(decoded())
        pack(root, tmp_path / "store", mode=mode)
        assert len(decoded()) - before == 20 - complete
        assert contents(tmp_path / "store") == whole

    def test_damaged_marks_and_shards_are_written_again(
        self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, bytes]
    ) -> None:
        with monkeypatch.context() as slow:
            slow_down(slow, 0.02)
            work = self.kill_after(4, root, tmp_path / "store")
            first, second, *_ = sorted(work.glob("shard-*"))
            first.write_bytes(first.read_bytes()[:-1])
            second.write_bytes(b"")
            work = self.kill_after(6, root, tmp_path / "store")
        data = work / "store" / "data.bin"
        damaged = bytearray(data.read_bytes())
        damaged[:] = bytes(byte ^ 0x55 for byte in damaged)  # as if nothing had reached the disk before a power cut
        data.write_bytes(damaged)
        pack(root, tmp_path / "store")
        assert contents(tmp_path / "store") == whole

    @pytest.mark.parametrize("done", [False, True])
    def test_leftovers_of_the_first_version_are_removed(self, root: Path, tmp_path: Path, done: bool) -> None:
        if done:
            pack(root, tmp_path / "store")
        (tmp_path / ".store.packing").mkdir()
        (tmp_path / ".store.packing" / "data.bin").write_bytes(b"half")
        pack(root, tmp_path / "store")
        assert not (tmp_path / ".store.packing").exists()

    def test_leftovers_of_a_folder_that_changed_are_not_used(
        self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as slow:
            slow_down(slow, 0.02)
            self.kill_after(4, root, tmp_path / "store")
        for path in root.rglob("*.png"):
            save(path, np.full((12, 16, 3), 7, dtype=np.uint8))
        assert_is(pack(root, tmp_path / "store"), root)

    def test_an_interrupt_stops_at_once_and_can_be_resumed(
        self,
        root: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        decoded: Decoded,
        whole: dict[str, bytes],
    ) -> None:
        slow_down(monkeypatch, 0.03)  # the worker decodes on until the main thread has its turn
        before = len(decoded())

        def interrupt(event: Event) -> None:
            if event.task == "packing" and event.done >= 6:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            pack(root, tmp_path / "store", workers=1, progress=interrupt)
        assert len(decoded()) - before < 20
        assert not (tmp_path / "store").exists()
        pack(root, tmp_path / "store")
        assert contents(tmp_path / "store") == whole

    def test_an_interrupt_does_not_wait_for_the_shard_to_end(
        self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: Decoded
    ) -> None:
        monkeypatch.setattr(_writing, "SHARD_BYTES", 100 * IMAGE)
        slow_down(monkeypatch, 0.03)

        def interrupt(event: Event) -> None:
            if event.task == "packing":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            pack(root, tmp_path / "store", workers=1, progress=interrupt)
        assert len(decoded()) < 15

    def test_two_processes_pack_once(
        self,
        root: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        whole: dict[str, bytes],
        decoded: Decoded,
    ) -> None:
        slow_down(monkeypatch, 0.02)
        before = len(decoded())
        children = [fork.Process(target=pack, args=(root, tmp_path / "store")) for _ in range(3)]
        for child in children:
            child.start()
        for child in children:
            child.join(60)
        assert [child.exitcode for child in children] == [0, 0, 0]
        assert len(decoded()) - before == 20
        assert contents(tmp_path / "store") == whole

    def test_who_waits_for_a_process_that_is_killed_goes_on_with_its_work(
        self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, bytes]
    ) -> None:
        with monkeypatch.context() as slow:
            slow_down(slow, 10)
            child = fork.Process(target=pack, args=(root, tmp_path / "store"))
            child.start()
            while not leftovers(tmp_path / "store"):
                time.sleep(0.005)
        phases = []

        def kill(event: Event) -> None:
            phases.append(event.task)
            if event.task == "waiting":
                os.kill(child.pid or 0, signal.SIGKILL)

        pack(root, tmp_path / "store", progress=kill)
        child.join()
        assert [phase for phase, _ in itertools.groupby(phases)] == ["measuring", "waiting", "packing"]
        assert contents(tmp_path / "store") == whole


class TestFullDisk:
    @pytest.fixture
    def disk(self, tmp_path: Path) -> Iterator[Path]:
        """A disk of 96 KiB."""
        mount = tmp_path / "disk"
        mount.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(mount)]
        if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("cannot mount a tmpfs here")
        try:
            yield mount
        finally:
            subprocess.run(["umount", "-l", str(mount)], check=True)

    def test_a_disk_that_is_plainly_too_small_is_told_before_work(
        self, disk: Path, tmp_path: Path, decoded: Decoded
    ) -> None:
        root = make_folder(tmp_path / "data", each=10, size=(32, 32))
        with pytest.raises(
            RunError, match=r"data\.bin: No space left on device \(122,880 bytes to write, [\d,]+ free\)"
        ):
            pack(root, disk / "store")
        assert not decoded()

    def test_a_disk_that_fills_up_keeps_what_is_complete(
        self, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: Decoded
    ) -> None:
        root = make_folder(tmp_path / "data", each=3, size=(32, 32))  # 12 images of 3 KiB, two a shard
        monkeypatch.setattr(_writing, "SHARD_BYTES", 8192)
        whole = contents(pack(root, tmp_path / "undisturbed", workers=2).path)
        before, original, calls = len(decoded()), packing.resample, itertools.count(1)

        def resample(source: Any, **options: Any) -> Any:
            resampled = original(source, **options)
            if next(calls) == 9:
                fill(disk / "filler")
            return resampled

        with monkeypatch.context() as filling:
            filling.setattr(packing, "resample", resample)
            with pytest.raises(
                RunError, match=r"No space left on device.* What was written before is intact: make room"
            ):
                pack(root, disk / "store", workers=2)
        assert not (disk / "store").exists()
        [work] = leftovers(disk / "store")
        complete = [int(mark.stem.removeprefix("shard-")) for mark in work.glob("shard-*.json")]
        assert len(complete) >= 3, "9 images were decoded, and each thread has one shard of two in hand"
        written = (work / "store" / "data.bin").read_bytes()
        for start in (2 * 3072 * shard for shard in complete):
            assert written[start:][: 2 * 3072] == whole["data.bin"][start:][: 2 * 3072]
        (disk / "filler").unlink()
        before = len(decoded())
        pack(root, disk / "store", workers=2)
        assert len(decoded()) - before == 12 - 2 * len(complete) > 0
        assert contents(disk / "store") == whole

    def test_a_limit_on_the_size_of_files_is_reported(self, tmp_path: Path) -> None:
        root = make_folder(tmp_path / "data")
        messages = fork.SimpleQueue()

        def limited() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (5 * IMAGE, 5 * IMAGE))
            try:
                pack(root, tmp_path / "store")
            except RunError as error:
                messages.put(str(error))

        child = fork.Process(target=limited)
        child.start()
        child.join()
        assert "data.bin: File too large" in messages.get()
        assert not (tmp_path / "store").exists()
        assert_is(pack(root, tmp_path / "store"), root)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_progress_runs_from_nothing_to_everything(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "data", each=5)
    (root / "photo/cat/0001.png").write_bytes(b"broken")
    seen: list[Event] = []
    threads = set()

    def report(event: Event) -> None:
        seen.append(event)
        threads.add(threading.get_ident())

    pack(root, tmp_path / "store", progress=report, skip_unreadable=True)
    packed = [event.done for event in seen if event.task == "packing"]
    assert packed == sorted(packed)
    assert seen[-1] == Event("packing", 20, 20, "images", "1 unreadable")
    assert threads == {threading.get_ident()}


def test_large_images_are_not_decoded_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_folder(tmp_path / "data", each=5, size=(12, 16))
    save(root / "art/cat/0001.png", np.zeros((100, 100, 3), dtype=np.uint8))
    monkeypatch.setattr(decoding, "PIXELS_AT_ONCE", 2 * 12 * 16)
    original, lock, now, most = packing.resample, threading.Lock(), [], []

    def resample(source: Any, *, name: str, size: tuple[int, int]) -> Any:
        with lock:
            now.append(name)
            most.append(list(now))
        time.sleep(0.002)
        resampled = original(source, name=name, size=size)
        with lock:
            now.remove(name)
        return resampled

    monkeypatch.setattr(packing, "resample", resample)
    pack(root, tmp_path / "store", workers=8, side=32)
    assert max(map(len, most)) == 2
    assert all(names == ["art/cat/0001.png"] for names in most if "art/cat/0001.png" in names)


PACK_AND_TELL = """
import resource, sys
from mecam.data.pack import pack
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
pack(sys.argv[1], sys.argv[2], workers=2)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_large_images_take_no_more_than_one_copy_in_all_threads_together(tmp_path: Path) -> None:
    """4 bytes a pixel, and something for strips; on their side and transparent, which once took 18 bytes."""
    exif = Image.Exif()
    exif[0x0112] = 6
    for domain in ("art", "photo"):
        (tmp_path / "data" / domain / "cat").mkdir(parents=True)
    Image.new("RGB", (6000, 3000)).save(tmp_path / "data/art/cat/1.jpg", exif=exif)
    Image.new("RGBA", (6000, 3000)).save(tmp_path / "data/photo/cat/1.png", compress_level=1, exif=exif)
    command = [sys.executable, "-c", PACK_AND_TELL, str(tmp_path / "data"), str(tmp_path / "store")]
    grown = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert grown < 7 * 6000 * 3000


@pytest.mark.attack("What a run is trained on")
def test_a_file_that_changes_meanwhile_is_reported(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "data")
    with (root / "art/cat/0002.png").open("ab") as file:

        def grow(event: Event) -> None:
            if event.task == "measuring":
                file.write(b"more")
                file.flush()

        with pytest.raises(DataError, match=r"art/cat/0002\.png changed while it was packed"):
            pack(root, tmp_path / "store", progress=grow)


def test_impossible_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"mode must be .*, got 'zip'"):
        pack(tmp_path, tmp_path / "store", mode="zip")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"side must be at least 1 pixel, got 0"):
        pack(tmp_path, tmp_path / "store", side=0)
