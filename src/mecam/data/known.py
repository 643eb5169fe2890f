"""The five benchmarks of the paper: contents of a complete copy, source, and a check of a folder against it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mecam.data.domains import DataError
from mecam.data.scan import Scan
from mecam.near import hint, plain


@dataclass(frozen=True)
class Known:
    """A public benchmark; None where the protocol does not fix a value."""

    name: str
    domains: tuple[str, ...]  # the protocol's names, in the order of the domain index
    images: int
    class_count: int
    source: str
    counts: tuple[int, ...] | None = None  # images per domain
    classes: tuple[str, ...] | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)  # from other names of domain folders to the protocol's

    def domain(self, folder: str) -> str | None:
        """Return the domain that a folder of this name holds; case, spaces, - and _ are ignored."""
        names = {plain(name): name for name in self.domains}
        names.update({plain(other): name for other, name in self.aliases.items()})
        return names.get(plain(folder))


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
    """Return whether there is a benchmark of this name, in any spelling."""
    return plain(name) in map(plain, KNOWN)


def find(name: str) -> Known:
    """Return the benchmark of this name, in any spelling; an unknown name is an error with near matches."""
    for known in KNOWN.values():
        if plain(known.name) == plain(name):
            return known
    raise DataError(f"there is no benchmark {name!r}; {hint(name, KNOWN)}")


def check(scan: Scan, known: Known) -> list[str]:
    """Return one sentence for each difference between a folder and the benchmark; none if the copy is complete."""
    holds = _holds(scan, known)
    present = tuple(holds.values())
    lines = [f"domain {name!r} is missing" for name in known.domains if name not in present]
    lines += [f"domain {name!r} is not part of {known.name}" for name in scan.domains if name not in holds]
    if known.classes:
        lines += [f"class {name!r} is missing" for name in known.classes if name not in scan.classes]
        lines += [f"class {name!r} is not part of {known.name}" for name in scan.classes if name not in known.classes]
    elif len(scan.classes) != known.class_count:
        lines.append(f"{known.class_count} classes expected, {len(scan.classes)} found")
    for folder, absent in scan.lacking.items():
        names = [name for name in absent if folder in holds and name in (known.classes or scan.classes)]
        lines += [f"domain {folder!r} has no images of class {name!r}" for name in names]
    lines += _counts(scan, known, holds)
    if present != tuple(sorted(present, key=known.domains.index)):
        lines.append(
            f"the domain folders sort as {', '.join(present)}, which is not the protocol's order: the splits depend "
            "on it, so rename the folders to the protocol's names"
        )
    return [*lines, *scan.notes]


def _holds(scan: Scan, known: Known) -> dict[str, str]:
    """Return the domain that each folder holds; of two folders with the same domain, the first counts."""
    holds: dict[str, str] = {}
    for folder in scan.domains:
        domain = known.domain(folder)
        if domain and domain not in holds.values():
            holds[folder] = domain
    return holds


def _counts(scan: Scan, known: Known, holds: Mapping[str, str]) -> Iterator[str]:
    """Yield one sentence for each wrong number of images."""
    files = dict(zip(scan.domains, scan.files, strict=True))
    counts = {domain: len(files[folder]) for folder, domain in holds.items()}
    expected = {"in all": (known.images, sum(counts.values()))}
    if known.counts is not None:
        pairs = zip(known.domains, known.counts, strict=True)
        expected = {f"in domain {name!r}": (count, counts[name]) for name, count in pairs if name in counts}
    for where, (right, count) in expected.items():
        if count != right:
            difference = f"{abs(count - right):,} {'too many' if count > right else 'missing'}"
            yield f"{right:,} images expected {where}, {count:,} found ({difference})"
