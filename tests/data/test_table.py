"""Lists of images as CSV and Parquet files."""

from pathlib import Path

import pytest

from mecam.data.domains import DataError
from mecam.data.folder import scan
from mecam.data.open import open_data
from mecam.data.pack import pack
from mecam.data.store import Store
from tests.data.folders import make_folder
from tests.data.test_layout import read

LIST = "path,label,domain\nb.png,dog,lab\nin/a.png,cat,home\nc.png,cat,lab\nd.png,dog,home\n"


def table(file: Path, content: str = LIST) -> Path:
    file.write_text(content, encoding="utf-8")
    return file


def test_a_list_names_domains_and_classes(tmp_path: Path) -> None:
    found = scan(table(tmp_path / "photos.csv"))
    assert (found.name, found.root) == ("photos", tmp_path)
    assert read(found) == {
        "home": {"cat": ["in/a.png"], "dog": ["d.png"]},
        "lab": {"cat": ["c.png"], "dog": ["b.png"]},
    }


def test_the_order_of_the_lines_does_not_matter(tmp_path: Path) -> None:
    head, *lines = LIST.splitlines()
    reversed_ = table(tmp_path / "reversed.csv", "\n".join((head, *lines[::-1])))
    assert scan(reversed_).files == scan(table(tmp_path / "photos.csv")).files


def test_without_a_column_domain_there_is_one_or_a_pattern(tmp_path: Path) -> None:
    file = table(tmp_path / "photos.csv", "path,label\nh1/a.png,cat\nh2/a.png,cat\n")
    assert scan(file).domains == ("photos",)
    assert scan(file, domain_from=r"(h\d)").domains == ("h1", "h2")


def test_it_is_packed_and_its_labels_are_part_of_the_data(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "data")
    files = sorted(root.rglob("*.png"))
    head = "path,label,domain\n"

    def listed(*domains: str) -> Store:
        rows = (f"{file},{file.parts[-2]},{domain}\n" for file, domain in zip(files, domains, strict=True))
        store = open_data(table(tmp_path / "photos.csv", head + "".join(rows)), cache=tmp_path / "cache")
        assert isinstance(store, Store)
        return store

    first = listed(*("art",) * 6, *("photo",) * 6)
    assert (first.name, first.domains, first.classes) == ("photos", ("art", "photo"), ("cat", "dog"))
    assert [first.labels(domain).tolist() for domain in (0, 1)] == [[0, 0, 0, 1, 1, 1]] * 2
    swapped = listed(*("photo",) * 6, *("art",) * 6)
    assert swapped.sample_name(0, 0) == first.sample_name(1, 0)
    assert swapped.fingerprint != first.fingerprint
    inside = pack(tmp_path / "photos.csv", tmp_path / "packed")  # beside the list, which is no folder of domains
    assert inside.fingerprint == swapped.fingerprint


def test_where_a_domain_ends_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "data")
    files = sorted((root / "art" / "cat").iterdir()) + sorted((root / "photo" / "cat").iterdir())
    found = []
    for first in (2, 3):
        rows = (f"{file},cat,{'a' if number < first else 'b'}\n" for number, file in enumerate(files))
        file = table(tmp_path / "photos.csv", "path,label,domain\n" + "".join(rows))
        found.append(open_data(file, cache=tmp_path / "cache").fingerprint)
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("path,domain\na.png,lab\n", "photos.csv has no column label; its columns are 'path,domain', expected path"),
        ("path;label\n", r"its columns are 'path;label', expected path,label\[,domain\], separated by commas"),
        ("path,label\n", "there are no images in .*photos.csv; it has no line below its columns"),
        ("path,label\na.png,\n", "photos.csv, line 2: no label"),
        ("path,label\na.png,cat\n./a.png,dog\n", "photos.csv, line 3: a.png is in line 2 already; remove one of them"),
        ("path,label,domain\na.png,cat,x\nb.png,dog,y\n", "'x' has no images of 'dog'; 'y' has no images of 'cat'"),
    ],
)
def test_lists_that_cannot_be_used_are_refused(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        scan(table(tmp_path / "photos.csv", content))


def test_settings_of_folders_are_refused(tmp_path: Path) -> None:
    file = table(tmp_path / "photos.csv")
    with pytest.raises(DataError, match=r"layout=class is for folders, and .*photos.csv is a table"):
        scan(file, layout="class")
    with pytest.raises(DataError, match=r"photos.csv has a column domain, and --domain-from \(.\) gives another"):
        scan(file, domain_from="(.)")


def test_a_list_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no such table .*none.csv; give a folder of images"):
        open_data(tmp_path / "none.csv")


def test_an_image_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"4 images of photos cannot be read; (?s:.*)b.png cannot be read: No such file"
    ):
        open_data(table(tmp_path / "photos.csv"), cache=tmp_path / "cache")


def test_parquet_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(
        DataError, match=r"photos.parquet needs pyarrow: pip install pyarrow, or write the list as a CSV"
    ):
        scan(table(tmp_path / "photos.parquet"))


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="reads Parquet")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"size": [1, 2], "label": [7, 8], "path": ["a.png", "b.png"], "domain": ["x", None]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "photos.parquet")
    with pytest.raises(DataError, match=r"photos.parquet, row 2: no domain"):
        scan(tmp_path / "photos.parquet")
    del columns["domain"]
    parquet.write_table(pyarrow.table(columns), tmp_path / "photos.parquet")
    assert read(scan(tmp_path / "photos.parquet")) == {"photos": {"7": ["a.png"], "8": ["b.png"]}}
    with pytest.raises(DataError, match=r"photos.parquet is not a Parquet file"):
        scan(table(tmp_path / "photos.parquet"))
