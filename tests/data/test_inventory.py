import re
from pathlib import Path

import pytest

from mecam.data.domains import DataError
from mecam.data.folder import scan
from mecam.data.inventory import Inventory
from mecam.data.pack import inspect, pack
from tests.data.folders import make_folder


def inventory(root: Path) -> Inventory:
    found = scan(root, allow_missing_classes=True)
    return Inventory(found, *inspect(found, workers=2))


def test_a_sound_folder_is_counted_and_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = inventory(make_folder(tmp_path / "data"))
    assert found.counts == [[3, 3], [3, 3]]
    assert (found.fine, found.problems(), found.ignored()) == (True, [], [])
    found.show()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[:-1] == [
        ["class", "art", "photo", "all"],
        ["cat", "3", "3", "6"],
        ["dog", "3", "3", "6"],
        ["all", "6", "6", "12"],
    ]
    assert " ".join(lines[-1]) == "2 domains, 2 classes, 12 images, all of which can be read"


def test_what_is_wrong_is_reported(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "data")
    for file in (root / "photo" / "dog").iterdir():
        file.unlink()
    image = root / "art" / "cat" / "0001.png"
    image.write_bytes(image.read_bytes()[:-200])  # its first bytes are sound: only decoding tells
    found = inventory(root)
    absent, empty, damaged = found.problems()
    assert absent == "domain 'photo' has no images of class 'dog'"
    assert empty == "class folder 'photo/dog' has no images in it"
    assert damaged.startswith("art/cat/0001.png cannot be read as an image (")
    assert found.counts == [[3, 3], [3, 0]]
    assert not found.fine


def test_what_is_no_image_is_ignored_and_no_problem(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "data")
    (root / "art" / "cat" / "notes.txt").touch()
    (root / "art" / ".DS_Store").touch()
    found = inventory(root)
    assert found.ignored() == ["'art/cat': not images, ignored: 'notes.txt'", "hidden, ignored: 'art/.DS_Store'"]
    assert found.fine


def test_an_image_that_leads_nowhere_is_a_loss(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "data")
    (root / "art" / "cat" / "1000.png").symlink_to("gone.png")
    found = inventory(root)
    assert found.ignored() == ["'art/cat': links that lead nowhere, ignored: '1000.png'"]
    assert not found.fine


def test_names_with_brackets_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make_folder(tmp_path / "data")
    for domain in ("art", "photo"):
        (root / domain / "cat").rename(root / domain / "[red]cat")
    inventory(root).show()
    assert "[red]cat" in capsys.readouterr().out


def test_checking_refuses_what_packing_refuses(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "data", size=(4, 4))
    (root / "art" / "cat" / "empty.png").touch()
    reported = []
    found = scan(root)
    (refused,), _ = inspect(found, progress=reported.append)
    assert refused.name == "art/cat/empty.png"
    with pytest.raises(DataError, match=re.escape(refused.reason)):
        pack(found, tmp_path / "store")
    assert list(dict.fromkeys(event.task for event in reported)) == ["measuring", "checking"]
