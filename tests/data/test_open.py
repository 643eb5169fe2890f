"""Finding data by name or path, and packing folders on first use."""

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from mecam.data import cached
from mecam.data import open as opening
from mecam.data.domains import DataError, DomainSet
from mecam.data.folder import scan
from mecam.data.open import cache_folder, open_data, stale
from mecam.data.pack import pack
from mecam.data.shapes import ShapesSet, shapes
from mecam.data.store import Store
from mecam.progress import Event
from tests.data.conftest import Decoded
from tests.data.folders import make_folder, pixels_of, save


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MECAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MECAM_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def same(first: DomainSet, second: DomainSet) -> bool:
    everything = range(len(first.labels(1)))
    return first.fingerprint == second.fingerprint and np.array_equal(
        first.images(1, everything), second.images(1, everything)
    )


def padded(root: Path) -> Path:
    """Give all images of a folder the same size in bytes; PNG ignores what follows its end."""
    for file in root.rglob("*.png"):
        file.write_bytes(file.read_bytes().ljust(4096, b"\0"))
    return root


def swap(root: Path, *names: str) -> None:
    """Exchange the content of two images, and keep their names, sizes and times."""
    files = [root / name for name in names]
    for file, content in zip(files, [file.read_bytes() for file in reversed(files)], strict=True):
        times = file.stat()
        file.write_bytes(content)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


class TestShapes:
    @pytest.fixture(autouse=True)
    def few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(opening.shapes, "shapes", partial(shapes, per_class=2))

    def test_it_needs_no_cache(self, cache: Path) -> None:
        cache.write_text("a file where the folder should be")
        data = open_data("shapes")
        assert isinstance(data, ShapesSet)
        assert open_data("shapes") is data, "drawn once"


class TestFolders:
    def test_a_folder_is_packed_on_first_use(self, cache: Path, tmp_path: Path, decoded: Decoded) -> None:
        root = make_folder(tmp_path / "pets")
        reports: list[Event] = []
        data = open_data(root, progress=reports.append)
        assert isinstance(data, Store)
        assert data.path.is_relative_to(cache)
        assert data.name == "pets"
        assert reports[-1] == Event("packing", 12, 12, "images")
        assert len(decoded()) == 12
        assert same(open_data(str(root)), data)
        assert same(open_data("pets"), data), "a folder in the working directory, by its name alone"
        assert len(decoded()) == 12

    @pytest.mark.attack("What a run is trained on")
    @pytest.mark.parametrize("kept", ["nothing", "state"])
    def test_content_decides_where_names_sizes_and_times_are_the_same(
        self, tmp_path: Path, decoded: Decoded, monkeypatch: pytest.MonkeyPatch, kept: str
    ) -> None:
        """Also on a file system whose change times do not change: then by a sample of the files."""
        if kept == "state":
            monkeypatch.setattr(cached, "_state", lambda _: "the same")
        root = padded(make_folder(tmp_path / "pets"))
        before = open_data(root)
        swap(root, "art/cat/0000.png", "art/dog/0001.png")
        after = open_data(root)
        assert len(decoded()) == 24
        assert after.fingerprint != before.fingerprint
        assert np.array_equal(after.images(0, [0])[0], pixels_of(root / "art/cat/0000.png"))
        assert same(open_data(root), after)
        swap(root, "art/cat/0000.png", "art/dog/0001.png")
        assert same(open_data(root), before), "packed already"
        assert len(decoded()) == 24

    @pytest.mark.attack("What a run is trained on")
    def test_all_files_are_compared_if_one_was_touched_since(
        self, tmp_path: Path, decoded: Decoded, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cached, "SAMPLE", 1)
        root = make_folder(tmp_path / "pets")
        before = open_data(root)
        read: list[int] = []
        digests = cached._digests
        monkeypatch.setattr(cached, "_digests", lambda images, names: read.append(len(names)) or digests(images, names))
        assert same(open_data(root), before)
        (root / "photo/dog/0001.png").chmod(0o600)
        for _ in range(2):
            assert same(open_data(root), before)
        assert read == [1, 12, 1]
        assert len(decoded()) == 12

    @pytest.mark.attack("What a run is trained on")
    def test_what_the_sample_misses_is_found_on_request(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cached, "_state", lambda _: "the same")
        monkeypatch.setattr(cached, "SAMPLE", 1)
        root = padded(make_folder(tmp_path / "pets"))
        before = open_data(root)
        assert stale(scan(root)) == ()
        swap(root, "photo/dog/0001.png", "photo/dog/0002.png")
        assert same(open_data(root), before)
        assert stale(scan(root)) == ("photo/dog/0001.png", "photo/dog/0002.png")
        assert not same(open_data(root), before)
        assert stale(scan(root)) == ()

    @pytest.mark.parametrize("change", ["content", "time", "removed", "renamed"])
    def test_a_folder_that_changed_is_packed_anew(self, tmp_path: Path, decoded: Decoded, change: str) -> None:
        root = make_folder(tmp_path / "pets")
        before, file = open_data(root), root / "art/cat/0001.png"
        if change == "content":
            save(file, np.zeros((12, 16, 3), dtype=np.uint8))
        elif change == "time":
            os.utime(file, (1, 1))
        elif change == "removed":
            file.unlink()
        else:
            file.rename(root / "art/cat/0009.png")
        packed = len(decoded())
        after = open_data(root)
        assert len(decoded()) - packed == (11 if change == "removed" else 12)
        assert (after.fingerprint == before.fingerprint) == (change == "time")

    def test_the_cache_can_be_given(self, cache: Path, tmp_path: Path) -> None:
        data = open_data(make_folder(tmp_path / "pets"), cache=tmp_path / "elsewhere")
        assert isinstance(data, Store)
        assert data.path.is_relative_to(tmp_path / "elsewhere")
        assert not cache.exists()

    def test_unreadable_images_are_refused_or_skipped_as_asked(self, tmp_path: Path) -> None:
        root = make_folder(tmp_path / "pets")
        (root / "art/cat/0001.png").write_bytes(b"broken")
        for _ in range(2):
            with pytest.raises(DataError, match=r"1 image of pets cannot be read"):
                open_data(root)
            data = open_data(root, skip_unreadable=True)
            assert isinstance(data, Store)
            assert [image.name for image in data.skipped] == ["art/cat/0001.png"]

    def test_a_store_is_opened_where_it_is(self, cache: Path, tmp_path: Path) -> None:
        store = pack(make_folder(tmp_path / "pets"), tmp_path / "store")
        data = open_data(tmp_path / "store")
        assert isinstance(data, Store)
        assert data.path == store.path
        assert not (cache / "stores").exists()

    def test_a_folder_that_is_not_there_is_reported(self, tmp_path: Path) -> None:
        for path in (tmp_path / "nowhere", "./nowhere", "~/nowhere/at/all"):
            with pytest.raises(DataError, match=r"there is no folder .*nowhere.*give a folder of images, a store"):
                open_data(path)

    def test_a_cache_that_cannot_be_written_is_reported(self, cache: Path, tmp_path: Path) -> None:
        cache.write_text("a file where the folder should be")
        with pytest.raises(DataError, match=r"cache is a file; a folder is needed there.*set \$MECAM_CACHE to"):
            open_data(make_folder(tmp_path / "pets"))


class TestKnownNames:
    @pytest.mark.parametrize(("name", "folder"), [("PACS", "PACS"), ("pacs", "PACS"), ("OfficeHome", "office_home")])
    def test_they_are_looked_for_in_the_data_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, folder: str
    ) -> None:
        make_folder(tmp_path / "sets" / folder)
        monkeypatch.setenv("MECAM_DATA", str(tmp_path / "sets"))
        data = open_data(name)
        assert data.name == {"pacs": "PACS"}.get(name, name)

    def test_one_that_is_not_there_is_told_with_where_to_get_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(DataError, match=r"VLCS is not part of mecam: get it \(Fang .*set \$MECAM_DATA"):
            open_data("vlcs")
        monkeypatch.setenv("MECAM_DATA", str(tmp_path))
        with pytest.raises(DataError, match=r"there is no folder VLCS in .*; get it \(Fang"):
            open_data("vlcs")
        monkeypatch.setenv("MECAM_DATA", str(tmp_path / "nowhere"))
        with pytest.raises(DataError, match=r"nowhere, where VLCS is looked for, is not a folder"):
            open_data("vlcs")

    @pytest.mark.parametrize(
        ("name", "near"),
        [("shape", "shapes"), ("PCAS", "PACS"), ("domain-nets", "DomainNet"), ("terra", "TerraIncognita")],
    )
    def test_a_misspelt_name_is_told_with_what_was_meant(self, name: str, near: str) -> None:
        with pytest.raises(DataError, match=rf"no data set and no folder '{name}'; did you mean .*{near}.*\?"):
            open_data(name)

    def test_a_name_like_no_other_is_told_with_all_that_are_known(self) -> None:
        with pytest.raises(DataError, match=r"'xyzzy'; known are shapes, PACS, VLCS.*path of a folder"):
            open_data("xyzzy")


def test_the_cache_is_in_the_home_folder_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MECAM_CACHE", raising=False)
    assert cache_folder() == Path.home() / ".cache" / "mecam"
    monkeypatch.setenv("MECAM_CACHE", "~/fast")
    assert cache_folder() == Path.home() / "fast"
