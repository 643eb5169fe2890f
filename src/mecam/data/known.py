"""The five benchmarks of the paper: what a complete copy holds, where it comes from, and whether a folder is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from mecam.data.domains import DataError
from mecam.data.folder import Scan
from mecam.near import plain


@dataclass(frozen=True)
class Known:
    """A benchmark. What is not known for sure is None."""

    name: str
    domains: tuple[str, ...]  # the protocol's names, in the order of the domain index
    images: int
    class_count: int
    source: str
    counts: tuple[int, ...] | None = None  # images of each domain
    classes: tuple[str, ...] | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)  # other names of domain folders, to the protocol's

    def domain(self, folder: str) -> str | None:
        """The domain that a folder of this name holds; upper case, spaces, - and _ make no difference."""
        names = {plain(name): name for name in self.domains}
        names.update({plain(other): name for other, name in self.aliases.items()})
        return names.get(plain(folder))


@dataclass(frozen=True)
class Count:
    """A number of images that is not what it should be; domain None: of the whole set."""

    domain: str | None
    expected: int
    found: int


@dataclass(frozen=True)
class Findings:
    """How a folder differs from the benchmark; nothing anywhere means that it is complete."""

    known: str
    missing_domains: tuple[str, ...] = ()
    extra_domains: tuple[str, ...] = ()
    missing_classes: tuple[str, ...] = ()
    extra_classes: tuple[str, ...] = ()
    class_count: tuple[int, int] | None = None  # expected, found; where the names are not known
    lacking: tuple[tuple[str, str], ...] = ()  # domain folder, class it has no images of
    counts: tuple[Count, ...] = ()
    order: tuple[str, ...] | None = None  # the domains as the folders sort, where that is not the protocol's order
    ignored: tuple[str, ...] = ()  # files and links that are no part of the data, in the scan's words

    @property
    def complete(self) -> bool:
        return self == Findings(self.known)

    def lines(self) -> list[str]:
        """One sentence a finding."""
        found = [f"domain {name!r} is missing" for name in self.missing_domains]
        found += [f"domain {name!r} is not part of {self.known}" for name in self.extra_domains]
        found += [f"class {name!r} is missing" for name in self.missing_classes]
        found += [f"class {name!r} is not part of {self.known}" for name in self.extra_classes]
        if self.class_count:
            found.append("{} classes expected, {} found".format(*self.class_count))
        found += [f"domain {domain!r} has no images of class {name!r}" for domain, name in self.lacking]
        for count in self.counts:
            where = "in all" if count.domain is None else f"in domain {count.domain!r}"
            difference = count.found - count.expected
            what = f"{abs(difference):,} {'too many' if difference > 0 else 'missing'}"
            found.append(f"{count.expected:,} images expected {where}, {count.found:,} found ({what})")
        if self.order:
            found.append(
                f"the domain folders sort as {', '.join(self.order)}, which is not the protocol's order: the splits "
                "depend on it, so rename the folders to the protocol's names"
            )
        return [*found, *self.ignored]


PACS = Known(
    name="PACS",
    domains=("art_painting", "cartoon", "photo", "sketch"),
    counts=(2048, 2344, 1670, 3929),
    images=9_991,
    class_count=7,
    classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
    aliases={"art": "art_painting"},
    source="Li et al., Deeper, Broader and Artier Domain Generalization, ICCV 2017: the authors' project page",
)
VLCS = Known(
    name="VLCS",
    domains=("Caltech101", "LabelMe", "SUN09", "VOC2007"),
    counts=(1415, 2656, 3282, 3376),
    images=10_729,
    class_count=5,
    classes=("bird", "car", "chair", "dog", "person"),
    aliases={"caltech": "Caltech101", "sun": "SUN09", "voc": "VOC2007", "pascal": "VOC2007", "pascalvoc": "VOC2007"},
    source="Fang et al., Unbiased Metric Learning, ICCV 2013: linked from the project page of PACS (Li et al., 2017)",
)
OFFICE_HOME = Known(
    name="OfficeHome",
    domains=("Art", "Clipart", "Product", "Real World"),
    counts=(2427, 4365, 4439, 4357),
    images=15_588,
    class_count=65,
    aliases={"real": "Real World"},
    source="Venkateswara et al., Deep Hashing Network for Unsupervised Domain Adaptation, CVPR 2017: the Office-Home "
    "Dataset page",
)
TERRA_INCOGNITA = Known(
    name="TerraIncognita",
    domains=("location_100", "location_38", "location_43", "location_46"),
    images=24_788,
    class_count=10,
    classes=("bird", "bobcat", "cat", "coyote", "dog", "empty", "opossum", "rabbit", "raccoon", "squirrel"),
    aliases={f"{prefix}{number}": f"location_{number}" for prefix in ("L", "") for number in ("100", "38", "43", "46")},
    source="Beery et al., Recognition in Terra Incognita, ECCV 2018: Caltech Camera Traps on LILA BC, arranged by "
    "DomainBed's download script",
)
DOMAIN_NET = Known(
    name="DomainNet",
    domains=("clip", "info", "paint", "quick", "real", "sketch"),
    counts=(48_129, 51_605, 72_266, 172_500, 172_947, 69_128),
    images=586_575,
    class_count=345,
    aliases={"clipart": "clip", "infograph": "info", "painting": "paint", "quickdraw": "quick"},
    source="Peng et al., Moment Matching for Multi-Source Domain Adaptation, ICCV 2019: the DomainNet (M3SDA) page, "
    "the cleaned version, less the duplicates that DomainBed lists",
)

KNOWN: Mapping[str, Known] = {known.name: known for known in (PACS, VLCS, OFFICE_HOME, TERRA_INCOGNITA, DOMAIN_NET)}


def is_known(name: str) -> bool:
    """Whether there is a benchmark of this name, in any case."""
    return plain(name) in map(plain, KNOWN)


def find(name: str) -> Known:
    """The benchmark of this name, in any case; an unknown name is an error with near matches."""
    names = {plain(known): known for known in KNOWN}
    if plain(name) in names:
        return KNOWN[names[plain(name)]]
    near = [names[match] for match in get_close_matches(plain(name), names, n=3, cutoff=0.4)]
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(KNOWN)}"
    raise DataError(f"there is no benchmark {name!r}; {hint}")


def check(scan: Scan, known: Known) -> Findings:
    """What the folder lacks, and has too much, of the benchmark."""
    holds = _holds(scan, known)
    present = tuple(holds.values())
    extra_classes = tuple(name for name in scan.classes if known.classes and name not in known.classes)
    count_differs = not known.classes and len(scan.classes) != known.class_count
    return Findings(
        known.name,
        missing_domains=tuple(domain for domain in known.domains if domain not in present),
        extra_domains=tuple(folder for folder in scan.domains if folder not in holds),
        missing_classes=tuple(name for name in known.classes or () if name not in scan.classes),
        extra_classes=extra_classes,
        class_count=(known.class_count, len(scan.classes)) if count_differs else None,
        lacking=tuple(pair for pair in _lacking(scan) if pair[0] in holds and pair[1] not in extra_classes),
        counts=_counts(scan, known, holds),
        order=None if present == tuple(sorted(present, key=known.domains.index)) else present,
        ignored=scan.notes,
    )


def _holds(scan: Scan, known: Known) -> dict[str, str]:
    """The domain in each folder that has one; of two folders with the same domain, the first."""
    holds: dict[str, str] = {}
    for folder in scan.domains:
        domain = known.domain(folder)
        if domain and domain not in holds.values():
            holds[folder] = domain
    return holds


def _lacking(scan: Scan) -> Iterator[tuple[str, str]]:
    for folder, labels in zip(scan.domains, scan.file_labels, strict=True):
        present = set(labels)
        yield from ((folder, name) for label, name in enumerate(scan.classes) if label not in present)


def _counts(scan: Scan, known: Known, holds: Mapping[str, str]) -> tuple[Count, ...]:
    files = dict(zip(scan.domains, scan.files, strict=True))
    found = {domain: len(files[folder]) for folder, domain in holds.items()}
    if known.counts is None:
        total = sum(found.values())
        return () if total == known.images else (Count(None, known.images, total),)
    return tuple(
        Count(domain, expected, found[domain])
        for domain, expected in zip(known.domains, known.counts, strict=True)
        if domain in found and found[domain] != expected
    )
