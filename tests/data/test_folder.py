import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mecam.data.domains import DataError
from mecam.data.folder import scan
from mecam.data.scan import Scan


def tree(root: Path, *files: str) -> Path:
    """Empty files: a scan goes by names alone."""
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two domains, two classes."""
    return tree(tmp_path / "pets", "b/dog/2.png", "b/dog/1.jpg", "b/cat/x.png", "a/dog/y.png", "a/cat/z.gif")


def test_everything_is_in_sorted_order(root: Path) -> None:
    scanned = scan(root)
    assert (scanned.name, scanned.domains, scanned.classes) == ("pets", ("a", "b"), ("cat", "dog"))
    assert scanned.files == (("a/cat/z.gif", "a/dog/y.png"), ("b/cat/x.png", "b/dog/1.jpg", "b/dog/2.png"))
    assert [scanned.labels(domain).tolist() for domain in (0, 1)] == [[0, 1], [0, 1, 1]]
    assert scanned.paths() == [*scanned.files[0], *scanned.files[1]]
    assert len(scanned) == 5
    assert scanned.notes == ()


def test_equal_trees_give_equal_scans(root: Path) -> None:
    assert scan(root) == scan(root)


def test_upper_case_sorts_first_as_the_protocol_does(tmp_path: Path) -> None:
    tree(tmp_path, *(f"{d}/{c}/1.png" for d in ("Real World", "art", "Art") for c in ("b", "B", "a")))
    assert (scan(tmp_path).domains, scan(tmp_path).classes) == (("Art", "Real World", "art"), ("B", "a", "b"))


@pytest.mark.parametrize("suffix", ["jpg", "jpeg", "png", "bmp", "webp", "ppm", "tif", "tiff", "gif", "JPG", "Png"])
def test_suffixes_of_images(root: Path, suffix: str) -> None:
    tree(root, f"a/cat/new.{suffix}")
    assert f"a/cat/new.{suffix}" in scan(root).files[0]


def test_folders_inside_a_class_belong_to_it_in_imagefolders_order(root: Path) -> None:
    """By folder path, then by name: sorted(os.walk(...)), as torchvision's ImageFolder has it."""
    tree(root, "a/cat/s/2.png", "a/cat/s b/1.png", "a/cat/s/t/0.png", "a/cat/s/10.png", "a/cat/zz.png")
    expected = [
        os.path.relpath(os.path.join(folder, file), root)
        for folder, _, files in sorted(os.walk(root / "a" / "cat"))
        for file in sorted(files)
    ]
    assert list(scan(root).files[0][:-1]) == expected
    assert scan(root).labels(0).tolist() == [0] * 6 + [1]


def test_files_that_are_not_images_are_passed_over_with_a_note(root: Path) -> None:
    tree(root, "README.txt", "a/list.csv", "a/cat/notes.txt", "a/stray.png")
    scanned = scan(root)
    assert len(scanned) == 5
    assert scanned.notes == (
        "'.': not folders, ignored: 'README.txt'",
        "'a': not folders, ignored: 'list.csv', 'stray.png'",
        "'a/cat': not images, ignored: 'notes.txt'",
    )


def test_many_files_make_one_note(root: Path) -> None:
    tree(root, *(f"a/cat/{number}.txt" for number in range(9)))
    assert scan(root).notes == ("'a/cat': not images, ignored: '0.txt', '1.txt', '2.txt' and 6 more",)


def test_hidden_names_are_ignored(root: Path) -> None:
    tree(root, ".git/x/1.png", "a/.cache/1.png", "a/cat/.1.png", "a/cat/._x.jpg", ".DS_Store", "__MACOSX/a/cat/1.png")
    assert len(scan(root)) == 5
    assert scan(root).notes == ()


@pytest.mark.parametrize("name", ["with space", "größe 犬", "new\nline", "quo'te\"", "-dash", "#%?*", "\udcff"])
def test_odd_names_work(root: Path, name: str) -> None:
    tree(root, f"{name}/cat/1.png", f"{name}/dog/{name}.png", f"a/cat/{name}.png")
    scanned = scan(root)
    assert name in scanned.domains
    assert f"a/cat/{name}.png" in scanned.files[scanned.domains.index("a")]
    domain = scanned.domains.index(name)
    assert all((root / file).is_file() for file in scanned.files[domain])


def test_odd_class_names_work(tmp_path: Path) -> None:
    tree(tmp_path, *(f"{domain}/new\nline ü/1.png" for domain in "ab"))
    assert scan(tmp_path).classes == ("new\nline ü",)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "has no folders in it"),
        (["1.png"], "has no folders in it"),
        (["a/cat/x.txt", "b/cat/x.txt"], "no images below"),
        (["a/cat/1.png", "b/cat/x.txt"], "no images in the domain 'b'"),
    ],
)
def test_trees_that_cannot_be_used_are_refused(tmp_path: Path, files: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        scan(tree(tmp_path, *files), allow_missing_classes=True)


def test_a_missing_root_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none does not exist; expected root/<domain>/<class>/<image>"):
        scan(tmp_path / "none")


def test_a_file_as_root_is_refused(tmp_path: Path) -> None:
    tree(tmp_path, "file")
    with pytest.raises(DataError, match="file is not a folder"):
        scan(tmp_path / "file")


def test_a_class_missing_in_a_domain_is_refused_unless_allowed(root: Path) -> None:
    tree(root, "b/fox/1.png", "a/fox/only.txt")
    with pytest.raises(DataError, match=r"'a' has no images of 'fox'.*--allow-missing-classes"):
        scan(root)
    scanned = scan(root, allow_missing_classes=True)
    assert scanned.classes == ("cat", "dog", "fox")
    assert [scanned.labels(domain).tolist() for domain in (0, 1)] == [[0, 1], [0, 1, 1, 2]]


@pytest.mark.parametrize("link", ["a/cat/loop", "a/loop", "loop"])
@pytest.mark.parametrize("target", ["..", ".", "../../..", "/", "a/cat", "b"])
def test_links_that_lead_back_end(root: Path, link: str, target: str) -> None:
    goal = root / target if target in ("a/cat", "b") else Path(target)
    (root / link).symlink_to(goal)
    scanned = scan(root)
    assert scanned.files == (("a/cat/z.gif", "a/dog/y.png"), ("b/cat/x.png", "b/dog/1.jpg", "b/dog/2.png"))
    assert scanned.notes == (f"{link!r} is a link back into the data and is ignored",)


def test_a_folder_elsewhere_is_visited_once_though_linked_twice(root: Path, tmp_path: Path) -> None:
    elsewhere = tree(tmp_path / "elsewhere", "1.png", "deep/2.png")
    (elsewhere / "deep" / "up").symlink_to("..")
    (root / "a" / "fox").symlink_to(elsewhere)
    (root / "b" / "fox").symlink_to(elsewhere)
    scanned = scan(root, allow_missing_classes=True)
    assert scanned.files[0][2:] == ("a/fox/1.png", "a/fox/deep/2.png")
    assert scanned.classes == ("cat", "dog", "fox")
    assert not any("fox" in file for file in scanned.files[1])
    assert "'b/fox' is a folder that was visited already and is ignored" in scanned.notes


def test_of_two_links_the_first_by_path_is_visited(root: Path, tmp_path: Path) -> None:
    elsewhere = tree(tmp_path / "elsewhere", "1.png")
    (root / "a" / "cat" / "more").symlink_to(elsewhere)
    (root / "c").symlink_to(elsewhere)
    scanned = scan(root)
    assert "a/cat/more/1.png" in scanned.files[0]
    assert scanned.domains == ("a", "b")
    assert scanned.notes == ("'c' is a folder that was visited already and is ignored",)


def test_links_to_folders_and_files_elsewhere_are_followed(root: Path, tmp_path: Path) -> None:
    tree(tmp_path / "disk", "c/cat/1.png", "c/dog/1.png", "image.png")
    (root / "c").symlink_to(tmp_path / "disk" / "c")
    (root / "a" / "cat" / "linked.png").symlink_to(tmp_path / "disk" / "image.png")
    scanned = scan(root)
    assert scanned.files[2] == ("c/cat/1.png", "c/dog/1.png")
    assert "a/cat/linked.png" in scanned.files[0]


def test_a_linked_root_is_as_good_as_the_root(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    (root / "a" / "loop").symlink_to("..")
    assert scan(tmp_path / "link").files == scan(root).files


def test_links_to_nowhere_and_to_themselves_are_passed_over(root: Path) -> None:
    (root / "a" / "cat" / "broken.png").symlink_to("nowhere.png")
    (root / "a" / "cat" / "self.png").symlink_to("self.png")
    (root / "self").symlink_to("self")
    scanned = scan(root)
    assert len(scanned) == 5
    assert scanned.notes == (
        "'.': links that lead nowhere, ignored: 'self'",
        "'a/cat': links that lead nowhere, ignored: 'broken.png', 'self.png'",
    )
    assert scanned.dead == ("self", "a/cat/broken.png", "a/cat/self.png")


def test_empty_class_folders_and_hidden_names_are_reported(root: Path) -> None:
    (root / "a" / "fox").mkdir()
    tree(root, "b/owl/notes.txt", "b/cat/.thumbs.png", ".cache/x/1.png")
    scanned = scan(root)
    assert scanned.classes == scan(root).classes
    assert scanned.empty == ("a/fox", "b/owl")
    assert scanned.hidden == (".cache", "b/cat/.thumbs.png")


def test_a_folder_named_like_an_image_is_no_image(root: Path) -> None:
    tree(root, "a/cat/album.png/1.png")
    assert scan(root).files[0][:2] == ("a/cat/z.gif", "a/cat/album.png/1.png")


@pytest.mark.parametrize("folder", ["a", "a/cat"])
def test_an_unreadable_folder_is_refused(root: Path, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.scandir

    def scandir(path: Path) -> Iterator[os.DirEntry[str]]:
        if Path(path) == root / folder:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)  # root, whom no permission stops, runs tests too
    with pytest.raises(DataError, match=f"{folder} cannot be read: Permission denied; check its permissions"):
        scan(root)


def test_a_scan_is_a_value(root: Path) -> None:
    assert isinstance(hash(scan(root)), int)
    with pytest.raises(AttributeError):
        scan(root).domains = ()  # type: ignore[misc]
    assert isinstance(scan(root), Scan)
