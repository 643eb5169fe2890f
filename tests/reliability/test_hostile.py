"""Files made to harm: sealed and summed as ours are, they still lead nowhere, run nothing and take no memory."""

import copy
import json
import os
import pickle
import socket
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mecam.benchmark.render import table
from mecam.data.decode import decode
from mecam.data.domains import DataError
from mecam.data.folder import scan
from mecam.data.pack import pack
from mecam.data.shapes import shapes
from mecam.data.store import ENTRY, Store, seal
from mecam.models.weights import WeightsError, read_weights
from mecam.recipe import Recipe
from mecam.runs import RunError, RunFolder, checkpoint
from mecam.storage import checksums, files
from mecam.storage.checksums import digest_blocks
from mecam.training import train
from tests.data.folders import make_folder

pytestmark = pytest.mark.attack("Untrusted files")
ROOT = Path(__file__).parents[2]
FORBIDDEN = ("pickle.load", "pickle.Unpickler", "allow_pickle=True", "weights_only=False", "yaml.load", "extractall",
             "shell=True", "os.system", "eval(", "exec(", "marshal.")  # fmt: skip


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.file),)


def finished(path: Path) -> RunFolder:
    folder = RunFolder(path)
    folder.begin({"lr": 0.1}, {}, run_id="x")
    folder.save_checkpoint({"step": 1})
    folder.write_model({"w": torch.ones(2)})
    folder.finish({})
    return folder


def test_no_code_of_the_package_can_run_what_it_reads() -> None:
    sources = {path: path.read_text() for path in (ROOT / "src").rglob("*.py")}
    found = [f"{path}: {word}" for path, text in sources.items() for word in FORBIDDEN if _calls(text, word)]
    assert found == []


def _calls(text: str, word: str) -> bool:
    """Whether the word stands for itself: `network.eval()` is no eval."""
    start = text.find(word)
    while start >= 0:
        if start == 0 or not (text[start - 1].isalnum() or text[start - 1] in "._"):
            return True
        start = text.find(word, start + 1)
    return False


@pytest.mark.parametrize("ending", ["pth", "pt", "safetensors"])
def test_weights_with_code_in_them_are_refused(tmp_path: Path, ending: str) -> None:
    harm, file = tmp_path / "harm", tmp_path / f"weights.{ending}"
    torch.save({"state_dict": {"w": torch.ones(1)}, "extra": Bomb(harm)}, file)
    with pytest.raises(WeightsError, match="weights"):
        read_weights(file)
    file.write_bytes(pickle.dumps(Bomb(harm)))
    with pytest.raises(WeightsError, match="weights"):
        read_weights(file)
    assert not harm.exists()


@pytest.mark.parametrize("overlapping", [False, True])
def test_weights_that_unpack_to_more_than_the_file_are_refused(tmp_path: Path, overlapping: bool) -> None:
    """As compressed entries, or as entries that share their bytes."""
    plain, file = tmp_path / "plain.pth", tmp_path / "bomb.pth"
    torch.save({"w": torch.zeros(1 << 18)}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry), zipfile.ZIP_STORED if overlapping else None)
        if overlapping:
            for number in range(9):
                twin = copy.copy(target.getinfo("plain/data/0"))
                twin.filename = f"plain/data/{number + 1}"
                target.filelist.append(twin)
                target.NameToInfo[twin.filename] = twin
            target._didModify = True  # type: ignore[attr-defined]
    assert file.stat().st_size < (1 << 20) + 4096
    with pytest.raises(WeightsError, match=r"bomb\.pth is refused: it has [\d,]+ bytes and unpacks to [\d,]{9,}; "):
        read_weights(file)


@pytest.mark.parametrize("zipped", [False, True])
def test_weights_with_an_object_of_any_size_are_refused(tmp_path: Path, zipped: bool) -> None:
    code = b"\x80\x02}U\x01wcbuiltins\nbytearray\nJ" + (1 << 30).to_bytes(4, "little") + b"\x85Rs."
    file = tmp_path / "bomb.pth"
    torch.save({}, file)
    if zipped:
        with zipfile.ZipFile(file) as source:
            entries = {entry.filename: source.read(entry) for entry in source.infolist()}
        with zipfile.ZipFile(file, "w") as target:
            for name, content in entries.items():
                target.writestr(name, code if name.endswith(".pkl") else content)
    else:
        file.write_bytes(code)
    with pytest.raises(WeightsError, match=r"bomb\.pth is refused: it holds a bytearray, of any size; expected"):
        read_weights(file)


def test_a_manifest_names_files_of_its_own_folder_only(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    manifest = folder.checkpoint_folder / "manifest.json"
    parts = json.loads(manifest.read_text())["parts"]
    for name in ("/dev/zero", "../../secret", "tensors-000001.safetensors/../../x"):
        parts["tensors"]["name"] = name
        manifest.write_text(json.dumps({"parts": parts, "sha256": checkpoint.digest(checkpoint._canonical(parts))}))
        with pytest.raises(RunError, match=r"manifest\.json is damaged: it names no file of this folder"):
            checkpoint.load(folder.checkpoint_folder)


def test_a_result_has_checksums_of_its_own_folder_only(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    for name in ("/dev/zero", "../secret"):
        sums = json.loads(folder.done_file.read_bytes())["sha256"]
        folder.done_file.write_bytes(checksums.seal({"result": {}, "sha256": {**sums, name: "0" * 64}}))
        with pytest.raises(RunError, match=r"done\.json is damaged: .* is no file of this folder"):
            folder.verify()


def test_run_ids_stay_in_their_folder() -> None:
    recipe = Recipe(data="../../etc", target="../../../x/$(reboot)", method="../erm")
    assert "/" not in recipe.run_id
    assert ".." not in recipe.run_id


def resealed(store: Path, index: np.ndarray[Any, Any] | None = None, **changes: Any) -> Path:
    """The store with other entries, and checksums that fit."""
    header = json.loads((store / "store.json").read_text())
    del header["checksum"]
    if index is not None:
        (store / "index.bin").write_bytes(index.tobytes())
        header["index.bin"]["digest"] = digest_blocks([index.tobytes()])
    (store / "store.json").write_bytes(seal({**header, **changes}))
    return store


@pytest.mark.parametrize("mode", ["decoded", "encoded"])
def test_a_store_that_lies(tmp_path: Path, mode: Any) -> None:
    path = pack(make_folder(tmp_path / "data"), tmp_path / "store", mode=mode).path
    index = np.fromfile(path / "index.bin", dtype=ENTRY)
    for size in ([1 << 20, 1 << 20], [0, 5], [-1, -1]):
        with pytest.raises(DataError, match=r"store\.json is damaged"):
            Store(resealed(path, size=size))
    size = json.loads((pack(tmp_path / "data", tmp_path / "other", mode=mode).path / "store.json").read_text())["size"]
    far, many = index.copy(), index.copy()
    far["offset"][0], many["label"][0] = 1 << 40, 1000
    store = Store(resealed(path, far, size=size))
    with pytest.raises(DataError, match=r"index\.bin is damaged: it has images beyond the end of data\.bin"):
        store.images(0, [0])
    store = Store(resealed(path, many, size=size))
    with pytest.raises(DataError, match=r"index\.bin is damaged: it has labels beyond the 2 classes"):
        store.labels(0)


def test_a_small_file_with_many_pixels_is_refused(tmp_path: Path) -> None:
    """A PNG of 40,000 x 40,000 in some hundred kilobytes would be 4.8 GB."""
    side = 40_000

    def chunk(kind: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4) + kind + content + zlib.crc32(kind + content).to_bytes(4)

    header = side.to_bytes(4) + side.to_bytes(4) + bytes([8, 2, 0, 0, 0])
    rows = zlib.compress(bytes(1 << 20))
    file = tmp_path / "a.png"
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))
    with pytest.raises(DataError, match=r"a\.png is refused as a decompression bomb"):
        decode(file, name="a.png")


def test_pipes_and_links_out_of_the_data_are_no_images(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "data")
    os.mkfifo(root / "art" / "cat" / "pipe.png")
    (root / "art" / "cat" / "loop.png").symlink_to("loop.png")
    found = scan(root)
    assert not [file for files in found.files for file in files if "pipe" in file or "loop" in file]


def test_files_that_are_being_written_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    write_all = files.write_all

    def look(descriptor: int, data: bytes) -> None:
        modes.append(os.fstat(descriptor).st_mode & 0o777)
        write_all(descriptor, data)

    monkeypatch.setattr(files, "write_all", look)
    files.write_atomic(tmp_path / "file", b"x")
    assert modes == [0o600]


def test_nothing_is_asked_of_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training and tables work where every connection is refused."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
    small = Recipe(target="art", steps=1, batch=2, image_size=8, evaluate_every=1)
    train(small, tmp_path, device="cpu", data=shapes(per_class=2))
    assert "art" in table(tmp_path)[0]


def test_images_are_what_they_claim(tmp_path: Path) -> None:
    """Formats that run programs, such as EPS, are not read, whatever the file is called."""
    file = tmp_path / "a.png"
    Image.new("RGB", (4, 4)).save(file, format="EPS")
    with pytest.raises(DataError, match=r"a\.png cannot be read as an image: it is none of"):
        decode(file, name="a.png")
