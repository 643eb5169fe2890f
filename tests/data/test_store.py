"""Reading a store: only what was written, by any process, without loading it."""

import json
import multiprocessing
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mecam.data import _writing
from mecam.data.domains import DataError, DomainSet
from mecam.data.pack import pack
from mecam.data.store import ENTRY, Store, seal
from mecam.storage.checksums import digest_blocks
from tests.data.folders import make_folder, pixels_of

fork = multiprocessing.get_context("fork")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "data")


@pytest.fixture(params=["decoded", "encoded"])
def store(request: pytest.FixtureRequest, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(_writing, "SHARD_BYTES", 2000)
    return pack(root, tmp_path / "store", mode=request.param)


def test_it_is_a_data_set(store: Store) -> None:
    assert isinstance(store, DomainSet)
    assert (len(store), store.domains, store.classes) == (12, ("art", "photo"), ("cat", "dog"))
    assert store.labels(0).dtype == np.int64
    assert store.aspects(1).dtype == np.float32


def test_images_come_in_the_order_asked_for(store: Store, root: Path) -> None:
    wanted = [5, 0, 0, 3]
    images = store.images(1, np.array(wanted))
    assert (images.shape, images.dtype) == ((4, 3, 12, 16), torch.uint8)
    expected = [pixels_of(root / store.sample_name(1, index)) for index in wanted]
    assert np.array_equal(images.numpy(), np.stack(expected))
    images.zero_()  # a copy: the store is not writable
    assert np.array_equal(store.images(1, wanted).numpy(), np.stack(expected))
    assert store.images(0, []).shape == (0, 3, 12, 16)


def test_what_is_not_there_is_an_index_error(store: Store) -> None:
    for domain, indices in ((0, [6]), (0, [-1]), (2, [0]), (-1, [0])):
        with pytest.raises(IndexError):
            store.images(domain, indices)
    with pytest.raises(IndexError):
        store.sample_name(0, 6)
    with pytest.raises(IndexError):
        store.labels(2)


def test_it_travels_to_other_processes(store: Store) -> None:
    expected = store.images(0, [0, 1, 2])  # starts the threads, which a fork leaves behind
    copy = pickle.loads(pickle.dumps(store))
    assert len(pickle.dumps(store)) < 1000
    assert torch.equal(copy.images(0, [0, 1, 2]), expected)
    said = fork.SimpleQueue()
    child = fork.Process(target=lambda: said.put(store.images(0, [0, 1, 2]).numpy().tobytes()))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert said.get() == expected.numpy().tobytes()


def flip(path: Path, position: int = 0) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[position] ^= 1
    path.write_bytes(damaged)


def change(path: Path, **changes: Any) -> None:
    """A header that is whole but says something else; None takes an entry away."""
    header = json.loads(path.read_text())
    del header["checksum"]
    header.update(changes)
    path.write_bytes(seal({name: value for name, value in header.items() if value is not None}))


DAMAGES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "no header": ("store.json", Path.unlink, r"is not a store: there is no .*store\.json"),
    "empty header": ("store.json", lambda path: path.write_bytes(b""), r"store\.json is damaged: it is not JSON"),
    "half a header": ("store.json", lambda path: path.write_text(path.read_text()[:100]), r"store\.json is damaged"),
    "not text": ("store.json", lambda path: path.write_bytes(b"\xff\xfe"), r"store\.json is damaged: it is not JSON"),
    "a changed header": (
        "store.json",
        lambda path: path.write_text(path.read_text().replace('"art"', '"ars"')),
        r"store\.json is damaged: its content does not match",
    ),
    "foreign": ("store.json", lambda path: path.write_text("[1, 2]"), r"store\.json is damaged: it holds a list"),
    "newer": (
        "store.json",
        lambda path: change(path, version=3),
        r"has version 3 .* reads versions 1 and 2",
    ),
    "lacking": ("store.json", lambda path: change(path, counts=None), r"store\.json is damaged: KeyError: 'counts'"),
    "senseless": ("store.json", lambda path: change(path, size="large"), r"store\.json is damaged: ValueError"),
    "miscounted": ("store.json", lambda path: change(path, counts=[6, 7]), r"store\.json .*not have 13 entries"),
    "cut data": ("data.bin", lambda path: path.write_bytes(path.read_bytes()[:-1]), r"data\.bin .*bytes instead of"),
    "long data": ("data.bin", lambda path: path.write_bytes(path.read_bytes() + b"x"), r"data\.bin .*bytes instead of"),
    "no data": ("data.bin", Path.unlink, r"data\.bin is missing from the store"),
    "index": ("index.bin", flip, r"index\.bin is damaged: its content does not match"),
    "cut index": (
        "index.bin",
        lambda path: path.write_bytes(path.read_bytes()[:-48]),
        r"index\.bin .*bytes instead of",
    ),
    "names": ("names.bin", flip, r"names\.bin is damaged: its content does not match"),
    "no names": ("names.bin", Path.unlink, r"names\.bin is missing from the store"),
}


@pytest.mark.attack("Damage")
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_told_on_opening(damage: str, root: Path, tmp_path: Path) -> None:
    file, harm, message = DAMAGES[damage]
    store = pack(root, tmp_path / "store")
    harm(store.path / file)
    with pytest.raises(DataError, match=message) as caught:
        Store(store.path)
    assert str(store.path / file) in str(caught.value)


@pytest.mark.attack("Damage")
@pytest.mark.parametrize("mode", ["decoded", "encoded"])
@pytest.mark.parametrize("file", ["data.bin", "index.bin", "names.bin"])
def test_a_file_that_is_truncated_while_it_is_in_use_is_named(file: str, mode: Any, root: Path, tmp_path: Path) -> None:
    """In a process of its own: to read beyond the end of a mapped file is a SIGBUS."""
    store = pack(root, tmp_path / "store", mode=mode)
    store.images(1, [0])
    messages = fork.SimpleQueue()

    def read() -> None:
        os.truncate(store.path / file, 0)
        with pytest.raises(DataError) as caught:
            (store.sample_name(1, 0), store.images(1, [0]))
        messages.put(str(caught.value))

    child = fork.Process(target=read)
    child.start()
    child.join()
    assert child.exitcode == 0
    assert messages.get().startswith(f"{store.path / file} is damaged: it was truncated while it was in use; remove ")


@pytest.mark.attack("Damage")
def test_a_damaged_image_is_found_by_verifying(store: Store) -> None:
    store.verify()
    flip(store.path / "data.bin", 3 * (store.path / "data.bin").stat().st_size // 4)
    again = Store(store.path)
    with pytest.raises(DataError, match=r"data\.bin is damaged: bytes .* images? from photo/\w+/\d+\.png on"):
        again.verify()


@pytest.mark.attack("Damage")
def test_an_encoded_image_that_is_damaged_is_named(root: Path, tmp_path: Path) -> None:
    store = pack(root, tmp_path / "store", mode="encoded")
    (store.path / "data.bin").write_bytes(bytes((store.path / "data.bin").stat().st_size))
    with pytest.raises(
        DataError, match=r"art/cat/0001\.png in .*data\.bin is damaged: its content does not match its checksum"
    ):
        Store(store.path).images(0, [1, 2])


@pytest.mark.attack("Damage")
def test_damaged_pixels_are_found_when_they_are_asked_for(root: Path, tmp_path: Path) -> None:
    store = pack(root, tmp_path / "store")
    content = bytearray((store.path / "data.bin").read_bytes())
    content[-1] ^= 1
    (store.path / "data.bin").write_bytes(content)
    with pytest.raises(DataError, match=r"data\.bin is damaged: bytes 0 to .*; remove the folder and pack"):
        Store(store.path).images(0, [1])


def test_a_path_that_is_no_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere is not a store"):
        Store(tmp_path / "nowhere")


def test_names_of_any_bytes_survive(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "data")
    odd = b"\xe9t\xe9 \xf0\x9f\x90\xb1.png".decode("utf-8", "surrogateescape")
    (root / "art/cat/0001.png").rename(root / "art/cat" / odd)
    (root / "art").rename(root / "été")
    (root / "photo/dog/0000.png").write_bytes(b"broken")
    (root / "photo/dog/0000.png").rename(root / "photo/dog" / odd)
    store = pack(root, tmp_path / "store", skip_unreadable=True)
    assert store.sample_name(1, 2) == f"été/cat/{odd}"
    assert store.skipped[0].name == f"photo/dog/{odd}"


def domainnet(path: Path, count: int = 586_575, side: int = 320) -> Path:
    """A store of the size of DomainNet, its pixels a hole in the file."""
    path.mkdir()
    image = 3 * side * side
    index = np.zeros(count, dtype=ENTRY)
    index["offset"] = np.arange(count) * image
    index["bytes"], index["width"], index["height"], index["name_bytes"] = image, 400, 300, 40
    index["name"], index["label"] = np.arange(count) * 40, np.arange(count) % 345
    names = b"".join(b"quickdraw/aircraft_carrier/%013d" % number for number in range(count))
    files = {"index.bin": index.tobytes(), "names.bin": names}
    for name, content in files.items():
        (path / name).write_bytes(content)
    with (path / "data.bin").open("wb") as data:
        data.truncate(count * image)
    header = {
        "format": "mecam store",
        "version": 1,
        "name": "DomainNet",
        "mode": "decoded",
        "domains": ["clip", "info", "paint", "quick", "real", "sketch"],
        "classes": [f"class {number:03d}" for number in range(345)],
        "counts": [count // 6] * 5 + [count - 5 * (count // 6)],
        "size": [side, side],
        "fingerprint": "0" * 32,
        "source": "",
        "skipped": [],
        "shards": [[128 * image, digest_blocks([bytes(128 * image)])]] * (count // 128) + [[count % 128 * image, ""]],
        **{name: {"bytes": len(content), "digest": digest_blocks([content])} for name, content in files.items()},
    }
    (path / "store.json").write_bytes(seal(header))
    return path


def resident() -> int:
    """Bytes of memory that this process occupies."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_store_of_half_a_million_images_opens_in_little_memory(tmp_path: Path) -> None:
    path = domainnet(tmp_path / "store")
    before = resident()
    store = Store(path)
    assert resident() - before < 8 << 20
    assert store.sample_name(5, 97_764) == "quickdraw/aircraft_carrier/0000000586574"
    assert store.images(3, [0, 50_000]).shape == (2, 3, 320, 320)
    assert resident() - before < 16 << 20
