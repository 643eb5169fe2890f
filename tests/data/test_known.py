from pathlib import Path

import pytest

from mecam.data.domains import DataError
from mecam.data.folder import scan
from mecam.data.known import KNOWN, PACS, VLCS, Count, Findings, Known, check, find

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


def findings(root: Path, known: Known, *files: str) -> Findings:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return check(scan(root, missing_classes="allow"), known)


@pytest.mark.parametrize("known", [ANIMALS, UNNAMED])
def test_a_complete_copy_has_no_findings(tmp_path: Path, known: Known) -> None:
    found = findings(tmp_path, known, *COMPLETE)
    assert found.complete
    assert found.lines() == []


def test_other_spellings_of_a_domain_are_known(tmp_path: Path) -> None:
    renamed = [file.replace("drawn", "Drawn").replace("real life", "Real_Life") for file in COMPLETE]
    assert findings(tmp_path, ANIMALS, *renamed).complete


def test_missing_and_extra_domains(tmp_path: Path) -> None:
    found = findings(tmp_path, ANIMALS, *COMPLETE[:3], "photo/cat/1.png", "photo/dog/1.png")
    assert found == Findings("Animals", missing_domains=("real life",), extra_domains=("photo",))
    assert found.lines() == ["domain 'real life' is missing", "domain 'photo' is not part of Animals"]


def test_two_folders_of_one_domain(tmp_path: Path) -> None:
    found = findings(tmp_path, ANIMALS, *COMPLETE, "sketch/cat/1.png", "sketch/dog/1.png")
    assert found == Findings("Animals", extra_domains=("sketch",))


def test_missing_and_extra_classes(tmp_path: Path) -> None:
    files = [file.replace("dog", "fox") for file in COMPLETE]
    found = findings(tmp_path, ANIMALS, *files)
    assert found == Findings("Animals", missing_classes=("dog",), extra_classes=("fox",))
    assert found.lines() == ["class 'dog' is missing", "class 'fox' is not part of Animals"]


def test_a_class_that_only_one_domain_lacks(tmp_path: Path) -> None:
    found = findings(tmp_path, ANIMALS, *COMPLETE[:4], "real life/cat/2.png")
    assert found == Findings("Animals", lacking=(("real life", "dog"),))
    assert found.lines() == ["domain 'real life' has no images of class 'dog'"]


def test_an_extra_class_of_one_domain_is_not_missed_in_the_other(tmp_path: Path) -> None:
    files = [*COMPLETE[:2], "drawn/fox/1.png", *COMPLETE[2:]]
    found = findings(tmp_path, ANIMALS, *files)
    assert found == Findings("Animals", extra_classes=("fox",), counts=(Count("drawn", 3, 4),))


def test_wrong_counts(tmp_path: Path) -> None:
    found = findings(tmp_path, ANIMALS, *COMPLETE[1:], "real life/cat/2.png", "real life/cat/3.png")
    assert found == Findings("Animals", counts=(Count("drawn", 3, 2), Count("real life", 2, 4)))
    assert found.lines() == [
        "3 images expected in domain 'drawn', 2 found (1 missing)",
        "2 images expected in domain 'real life', 4 found (2 too many)",
    ]


def test_totals_where_no_more_is_known(tmp_path: Path) -> None:
    found = findings(tmp_path, UNNAMED, *COMPLETE[:-1], "drawn/fox/1.png", "drawn/fox/2.png", "real life/fox/1.png")
    assert found == Findings(
        "Unnamed", class_count=(2, 3), lacking=(("real life", "dog"),), counts=(Count(None, 5, 7),)
    )
    assert found.lines()[0] == "2 classes expected, 3 found"
    assert found.lines()[-1] == "5 images expected in all, 7 found (2 too many)"


def test_files_that_are_no_part_of_the_data_are_named(tmp_path: Path) -> None:
    found = findings(tmp_path, ANIMALS, *COMPLETE, "readme.md", "drawn/stray.png", "real life/cat/notes.txt")
    assert not found.complete
    assert found.lines() == [
        "'.': not folders, ignored: 'readme.md'",
        "'drawn': not folders, ignored: 'stray.png'",
        "'real life/cat': not images, ignored: 'notes.txt'",
    ]


def test_folders_that_sort_otherwise_than_the_protocol_are_told(tmp_path: Path) -> None:
    """VLCS as others ship it: PASCAL, which is VOC2007, would come before SUN and swap two domain indices."""
    files = [
        f"{domain}/{name}/1.png" for domain in ("CALTECH", "LABELME", "PASCAL", "SUN") for name in VLCS.classes or ()
    ]
    found = findings(tmp_path, VLCS, *files)
    assert found.order == ("Caltech101", "LabelMe", "VOC2007", "SUN09")
    assert "not the protocol's order" in found.lines()[-1]
    assert (found.missing_domains, found.extra_domains) == ((), ())


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
