from pathlib import Path

import pytest

from mecam.data.domains import DataError
from mecam.data.folder import scan
from mecam.data.known import KNOWN, PACS, VLCS, Known, check, find

ANIMALS = Known(
    name="Animals",
    domains=("drawn", "real life"),
    counts=(3, 2),
    images=5,
    class_count=2,
    classes=("cat", "dog"),
    aliases={"sketch": "drawn"},
    source="nowhere",
)
UNNAMED = Known(name="Unnamed", domains=("drawn", "real life"), images=5, class_count=2, source="nowhere")
COMPLETE = ("drawn/cat/1.png", "drawn/cat/2.png", "drawn/dog/1.png", "real life/cat/1.png", "real life/dog/1.png")


def differences(root: Path, known: Known, *files: str) -> list[str]:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return check(scan(root, allow_missing_classes=True), known)


@pytest.mark.parametrize("known", [ANIMALS, UNNAMED])
def test_a_complete_copy_has_no_differences(tmp_path: Path, known: Known) -> None:
    assert differences(tmp_path, known, *COMPLETE) == []


def test_other_spellings_of_a_domain_are_known(tmp_path: Path) -> None:
    renamed = [file.replace("drawn", "Drawn").replace("real life", "Real_Life") for file in COMPLETE]
    assert differences(tmp_path, ANIMALS, *renamed) == []


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            [*COMPLETE[:3], "photo/cat/1.png", "photo/dog/1.png"],
            ["domain 'real life' is missing", "domain 'photo' is not part of Animals"],
        ),
        ([*COMPLETE, "sketch/cat/1.png", "sketch/dog/1.png"], ["domain 'sketch' is not part of Animals"]),
        (
            [file.replace("dog", "fox") for file in COMPLETE],
            ["class 'dog' is missing", "class 'fox' is not part of Animals"],
        ),
        ([*COMPLETE[:4], "real life/cat/2.png"], ["domain 'real life' has no images of class 'dog'"]),
        (
            [*COMPLETE, "drawn/fox/1.png"],  # and the other domain does not miss it
            [
                "class 'fox' is not part of Animals",
                "3 images expected in domain 'drawn', 4 found (1 too many)",
            ],
        ),
        (
            [*COMPLETE[1:], "real life/cat/2.png", "real life/cat/3.png"],
            [
                "3 images expected in domain 'drawn', 2 found (1 missing)",
                "2 images expected in domain 'real life', 4 found (2 too many)",
            ],
        ),
        (
            [*COMPLETE, "readme.md", "drawn/stray.png", "real life/cat/notes.txt"],
            [
                "'.': not folders, ignored: 'readme.md'",
                "'drawn': not folders, ignored: 'stray.png'",
                "'real life/cat': not images, ignored: 'notes.txt'",
            ],
        ),
    ],
)
def test_differences_are_reported(tmp_path: Path, files: list[str], expected: list[str]) -> None:
    assert differences(tmp_path, ANIMALS, *files) == expected


def test_totals_where_no_more_is_known(tmp_path: Path) -> None:
    files = [*COMPLETE[:-1], "drawn/fox/1.png", "drawn/fox/2.png", "real life/fox/1.png"]
    assert differences(tmp_path, UNNAMED, *files) == [
        "2 classes expected, 3 found",
        "domain 'real life' has no images of class 'dog'",
        "5 images expected in all, 7 found (2 too many)",
    ]


def test_folders_in_another_order_than_the_protocols(tmp_path: Path) -> None:
    """VLCS as others ship it: PASCAL, which is VOC2007, would come before SUN and swap two domain indices."""
    files = [
        f"{domain}/{name}/1.png" for domain in ("CALTECH", "LABELME", "PASCAL", "SUN") for name in VLCS.classes or ()
    ]
    lines = differences(tmp_path, VLCS, *files)
    assert "sort as Caltech101, LabelMe, VOC2007, SUN09, which is not the protocol's order" in lines[-1]
    assert not any(line.startswith("domain ") for line in lines)


@pytest.mark.parametrize(
    ("name", "folder", "domain"),
    [
        ("DomainNet", "clipart", "clip"),
        ("domain_net", "Quickdraw", "quick"),
        ("officehome", "RealWorld", "Real World"),
        ("office-home", "Real", "Real World"),
        ("TERRA INCOGNITA", "L38", "location_38"),
        ("terraincognita", "location-100", "location_100"),
        ("pacs", "art", "art_painting"),
        ("vlcs", "pascal_voc", "VOC2007"),
        ("vlcs", "imagenet", None),
    ],
)
def test_benchmarks_and_folders_by_name(name: str, folder: str, domain: str | None) -> None:
    assert find(name).domain(folder) == domain


@pytest.mark.parametrize(("name", "hint"), [("PASC", "did you mean PACS"), ("", "known are PACS, VLCS")])
def test_an_unknown_benchmark_is_refused_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(DataError, match=hint):
        find(name)


@pytest.mark.parametrize(
    ("name", "domains", "images", "classes"),
    [
        ("PACS", 4, 9_991, 7),
        ("VLCS", 4, 10_729, 5),
        ("OfficeHome", 4, 15_588, 65),
        ("TerraIncognita", 4, 24_788, 10),
        ("DomainNet", 6, 586_575, 345),
    ],
)
def test_the_papers_table_of_data_sets(name: str, domains: int, images: int, classes: int) -> None:
    known = KNOWN[name]
    assert (len(known.domains), known.images, known.class_count) == (domains, images, classes)


@pytest.mark.parametrize("known", KNOWN.values(), ids=list(KNOWN))
def test_entries_are_consistent(known: Known) -> None:
    assert list(known.domains) == sorted(known.domains)
    assert known.counts is None or (sum(known.counts) == known.images and len(known.counts) == len(known.domains))
    assert known.classes is None or (list(known.classes) == sorted(known.classes))
    assert known.classes is None or len(known.classes) == known.class_count
    assert set(known.aliases.values()) <= set(known.domains)
    assert known.source


def test_pacs_counts_are_the_protocols() -> None:
    assert PACS.domains == ("art_painting", "cartoon", "photo", "sketch")
    assert PACS.counts == (2048, 2344, 1670, 3929)
