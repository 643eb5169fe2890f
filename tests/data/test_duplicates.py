"""Images that occur twice: what counts as the same, what only looks alike, and what is no duplicate."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from mecam.data.duplicates import Duplicates, Pictures, pictures_of
from mecam.data.folder import scan
from mecam.data.inventory import Inventory
from mecam.data.notes import notes_on
from mecam.data.pack import inspect, pack

DOMAINS, CLASSES = ("lab", "home"), ("cat", "dog")


def scene(seed: int) -> Image.Image:
    """A smooth picture, like a photograph: coarse noise, enlarged."""
    noise = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((160, 120), Image.Resampling.BICUBIC)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three pictures per domain and class, all different."""
    for number, (domain, name, image) in enumerate((d, c, i) for d in DOMAINS for c in CLASSES for i in range(3)):
        path = tmp_path / "data" / domain / name / f"{image}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        scene(number).save(path)
    return tmp_path / "data"


def found(root: Path) -> Duplicates:
    unreadable, duplicates = inspect(scan(root))
    assert unreadable == ()
    return duplicates


def test_different_pictures_are_no_duplicates(root: Path, tmp_path: Path) -> None:
    assert found(root) == Duplicates()
    assert notes_on(pack(root, tmp_path / "store")) == []


@pytest.mark.attack("What a number means")
def test_the_same_file_in_two_domains_or_classes(root: Path, tmp_path: Path) -> None:
    shutil.copy(root / "lab/cat/0.png", root / "home/cat/again.png")
    shutil.copy(root / "lab/cat/1.png", root / "lab/dog/again.png")
    shutil.copy(root / "lab/cat/2.png", root / "lab/cat/again.png")  # in one domain, under one label
    duplicates = found(root)
    assert duplicates.across_domains == (("home/cat/again.png", "lab/cat/0.png"),)
    assert duplicates.across_labels == (("lab/cat/1.png", "lab/dog/again.png"),)
    assert duplicates.alike == ()
    store = pack(root, tmp_path / "store")
    assert pictures_of(store, looks=True).duplicates() == duplicates
    assert notes_on(store) == [
        "1 image occurs in several domains and 1 image occurs under several labels of a domain of data, such as "
        "'home/cat/again.png', 'lab/cat/0.png': accuracies may be too high. mecam data check lists them"
    ]


@pytest.mark.attack("What a number means")
@pytest.mark.parametrize("mode", ["decoded", "encoded"])
def test_a_domain_that_is_a_copy_of_another(root: Path, tmp_path: Path, mode: str) -> None:
    shutil.copytree(root / "lab", root / "hospital")
    store = pack(root, tmp_path / "store", mode=mode)  # type: ignore[arg-type]
    (note,) = notes_on(store)
    assert note.startswith("6 images occur in several domains of data, such as 'hospital/cat/0.png', 'lab/cat/0.png'")
    inventory = Inventory(scan(root), *inspect(scan(root)))
    assert not inventory.fine
    assert inventory.problems()[0] == "the same image in several domains: 'hospital/cat/0.png', 'lab/cat/0.png'"
    assert len(inventory.problems()) == 6


@pytest.mark.attack("What a number means")
@pytest.mark.parametrize("change", ["jpeg", "half", "bright"])
def test_a_changed_copy_looks_alike(root: Path, tmp_path: Path, change: str) -> None:
    with Image.open(root / "lab/cat/0.png") as image:
        if change == "jpeg":
            image.save(root / "home/cat/new.jpg", quality=60)
        elif change == "half":
            image.resize((80, 60)).save(root / "home/cat/new.png")
        else:
            ImageEnhance.Brightness(image).enhance(1.1).save(root / "home/cat/new.png")
    duplicates = found(root)
    (pair,) = duplicates.alike
    assert {Path(name).parts[0] for name in pair} == {"home", "lab"}
    assert (duplicates.across_domains, duplicates.problems()) == ((), [])
    assert pictures_of(pack(root, tmp_path / "store"), looks=True).duplicates() == duplicates
    (note,) = duplicates.notes()
    assert note.startswith("nearly the same image in another domain or class: 'home/cat/new.")
    assert Inventory(scan(root), (), duplicates).fine, "a likeness may be a chance"


def test_blank_pictures_do_not_look_alike(root: Path) -> None:
    for place, grey in (("lab/cat", 250), ("home/dog", 255)):
        Image.new("RGB", (160, 120), (grey, grey, grey)).save(root / place / "blank.png")
    assert found(root).alike == ()


def test_long_lists_are_cut() -> None:
    groups = tuple((f"a/{number}", f"b/{number}") for number in range(30))
    lines = Duplicates(across_domains=groups, compared=False).problems()
    assert (len(lines), lines[-1]) == (21, "and 10 more like these")
    (note,) = Duplicates(compared=False).notes()
    assert note == "more than 50,000 images: not searched for images that look alike"


def test_all_pairs_are_compared() -> None:
    """Two alike among more images than are compared at once, wherever they are."""
    random = np.random.default_rng(0)
    looks = random.integers(0, 256, (600, 264), dtype=np.uint8)
    for first, second in ((0, 599), (255, 256), (300, 310)):
        looks[second] = looks[first]
        looks[second, 0] ^= 0b111  # three bits of 64
    pictures = Pictures(
        name=str,
        domains=np.arange(600) % 7,
        labels=np.zeros(600, dtype=np.int64),
        digests=np.arange(600, dtype=np.uint64),
        looks=looks,
    )
    assert set(pictures.duplicates().alike) == {("0", "599"), ("255", "256"), ("300", "310")}
