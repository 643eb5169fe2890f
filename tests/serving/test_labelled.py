"""Folders and CSV files of labelled images: what is read, what is reported, what is refused."""

from pathlib import Path

import pytest
from PIL import Image

from mecam.data.domains import DataError
from mecam.serving.labelled import find_labelled

CLASSES = ("cat", "dog", "horse")


def picture(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(file)


def read(source: Path) -> tuple[list[tuple[str, str, str]], list[str]]:
    found, ignored = find_labelled(source, CLASSES)
    root = source if source.is_dir() else source.parent
    return [(one.image.relative_to(root).as_posix(), CLASSES[one.label], one.domain) for one in found], ignored


def test_classes(tmp_path: Path) -> None:
    picture(tmp_path / "dog/b.png", tmp_path / "dog/deep/a.JPG", tmp_path / "cat/c.png")
    expected = [("cat/c.png", "cat", ""), ("dog/b.png", "dog", ""), ("dog/deep/a.JPG", "dog", "")]
    assert read(tmp_path) == (expected, [])


def test_domains(tmp_path: Path) -> None:
    picture(tmp_path / "lab/dog/a.png", tmp_path / "lab/cat/b.png", tmp_path / "home/horse/c.png")
    expected = [("home/horse/c.png", "horse", "home"), ("lab/cat/b.png", "cat", "lab"), ("lab/dog/a.png", "dog", "lab")]
    assert read(tmp_path) == (expected, [])


def test_a_domain_may_have_the_name_of_a_class(tmp_path: Path) -> None:
    picture(tmp_path / "horse/dog/a.png", tmp_path / "lab/dog/b.png")
    assert [domain for *_, domain in read(tmp_path)[0]] == ["horse", "lab"]


def test_folders_inside_a_class_are_not_classes(tmp_path: Path) -> None:
    picture(tmp_path / "dog/2024/a.png", tmp_path / "cat/dog/b.png")
    assert read(tmp_path)[0] == [("cat/dog/b.png", "cat", ""), ("dog/2024/a.png", "dog", "")]


def test_links_to_folders(tmp_path: Path) -> None:
    picture(tmp_path / "elsewhere/a.png")
    (tmp_path / "root").mkdir()
    (tmp_path / "root/dog").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/loop").symlink_to(tmp_path / "root")
    found, ignored = read(tmp_path / "root")
    assert found == [("dog/a.png", "dog", "")]
    assert ignored == ["'dog/loop' is a link back into the data and is ignored"]


def test_what_is_not_read_is_reported(tmp_path: Path) -> None:
    picture(tmp_path / "lab/dog/a.png", tmp_path / "lab/beside.png", tmp_path / "above.png", tmp_path / ".hidden/x.png")
    (tmp_path / "lab/dog/a.raw").touch()
    (tmp_path / "lab/dog/.DS_Store").touch()
    (tmp_path / "lab/cat").mkdir()
    found, ignored = read(tmp_path)
    assert found == [("lab/dog/a.png", "dog", "lab")]
    assert ignored == [
        "'.': not folders, ignored: 'above.png'",
        "'lab': not folders, ignored: 'beside.png'",
        "'lab/dog': not images, ignored: 'a.raw'",
        "'lab/cat': no images",
    ]


@pytest.mark.parametrize("domain", ["", "lab/"])
def test_unknown_classes_are_refused_with_both_lists(domain: str, tmp_path: Path) -> None:
    picture(*(tmp_path / f"{domain}{name}/a.png" for name in ("dog", "hrose", "zzz")))
    with pytest.raises(DataError) as error:
        find_labelled(tmp_path, CLASSES)
    message = f"{tmp_path} has classes that the model does not know: 'hrose' (did you mean horse?), 'zzz'. "
    assert str(error.value) == message + "The model's classes: 'cat', 'dog', 'horse'. Those here: 'dog', 'hrose', 'zzz'"


def test_no_folder_is_a_class(tmp_path: Path) -> None:
    picture(tmp_path / "Cats/a.png")
    with pytest.raises(DataError, match=r"'Cats' \(did you mean cat\?\)"):
        find_labelled(tmp_path, CLASSES)


def test_folders_without_images(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no folders in it; expected root/<class>/<image>"):
        find_labelled(tmp_path, CLASSES)
    with pytest.raises(DataError, match=r"nowhere does not exist; expected"):
        find_labelled(tmp_path / "nowhere", CLASSES)


def test_a_csv_file(tmp_path: Path) -> None:
    file = tmp_path / "photos.csv"
    file.write_text('\ufeffnumber, path ,domain,label\n1,"a, b.png",lab,dog\n2,in/c.png,home,cat\n\n', encoding="utf-8")
    assert read(file) == ([("a, b.png", "dog", "lab"), ("in/c.png", "cat", "home")], [])
    file.write_text(f"label,path\nhorse,{tmp_path}/x.png\n", encoding="utf-8")
    assert read(file) == ([("x.png", "horse", "")], [])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"path,label\na.png,dog\nb.png,Horse\nc.png,cow\n", r"photos\.csv \(line 3\) has classes .*'Horse' \(did you "
         r"mean horse\?\), 'cow'.*The model's classes: 'cat', 'dog', 'horse'\. Those here: 'dog', 'Horse', 'cow'"),
        (b"file,label\na.png,dog\n", r"photos\.csv has no column path; its columns are 'file,label'"),
        (b"", r"photos\.csv has no column path and label"),
        (b"path,label\na.png\n", r"photos\.csv, line 2: no label"),
        (b"path,label,domain\na.png,dog,\n", r"photos\.csv, line 2: no domain"),
        (b"path,label\n", r"there are no images in .*photos\.csv"),
        (b"\xff\xd8\xff\xe0 a photograph", r"photos\.csv is not a CSV file in UTF-8"),
        (b'path,label\n"a.png,dog\n', r"photos\.csv is not a CSV file in UTF-8"),
    ],
)  # fmt: skip
def test_csv_files_that_are_refused(content: bytes, expected: str, tmp_path: Path) -> None:
    (tmp_path / "photos.csv").write_bytes(content)
    with pytest.raises(DataError, match=expected):
        find_labelled(tmp_path / "photos.csv", CLASSES)
