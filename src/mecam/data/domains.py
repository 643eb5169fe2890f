"""Labelled images in domains: the interface of every data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mecam.near import hint


class DataError(ValueError):
    """Data that cannot be used."""


class DataWarning(UserWarning):
    """Data on which results may be misleading."""


class UnreadableError(DataError):
    """Images that cannot be read; after its first line, the message has one line per image."""

    @property
    def lines(self) -> list[str]:
        """Return the message by line, as the command line prints it."""
        return str(self).splitlines()


class HasDomains(Protocol):
    """A data set, open or known only by name."""

    @property
    def name(self) -> str:
        """ "shapes", "PACS", or the folder's name."""

    @property
    def domains(self) -> tuple[str, ...]:
        """Sorted; the order is the domain index."""


@runtime_checkable
class DomainSet(HasDomains, Protocol):
    """Images of the same classes from several domains; domains and images have indices."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Sorted; the order is the label."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of every stored image."""

    @property
    def fingerprint(self) -> str:
        """Hex digest of names, labels and images."""

    def labels(self, domain: int) -> NDArray[np.int64]:
        """Return the class index of each image of the domain."""

    def aspects(self, domain: int) -> NDArray[np.float32]:
        """Return the original width / height of each image of the domain."""

    def sample_name(self, domain: int, index: int) -> str:
        """Return the source of an image, such as "photo/dog/0001.jpg"."""

    def images(self, domain: int, indices: Sequence[int] | NDArray[np.integer]) -> Tensor:
        """Return images as uint8 (n, 3, height, width) on the CPU."""


def domain_index(data: HasDomains, name: str) -> int:
    """Return the index of the domain of this name; an unknown name is an error with near matches."""
    if name in data.domains:
        return data.domains.index(name)
    raise DataError(f"{data.name} has no domain {name!r}; {hint(name, data.domains, otherwise='its domains are')}")


def most_frequent(data: DomainSet, domain: str) -> tuple[str, float]:
    """Return the class that most images of a domain have, and its share of them."""
    labels = data.labels(domain_index(data, domain))
    counts = np.bincount(labels)
    return data.classes[int(counts.argmax())], float(counts.max() / len(labels))


def source_domains(data: HasDomains, target: str | None, names: Sequence[str] = ()) -> tuple[int, ...]:
    """Return the indices of the domains to train on: those named, or all but the target; at least one."""
    held_out = None if target is None else domain_index(data, target)
    if names:
        return tuple(sorted({domain_index(data, name) for name in names}))
    sources = tuple(index for index in range(len(data.domains)) if index != held_out)
    if not sources:
        raise DataError(f"{_single(data)} and it cannot be left out. Train on it, without --target")
    return sources


def check_several(data: HasDomains) -> None:
    """Refuse a single domain, for callers that leave out each in turn."""
    if len(data.domains) < 2:
        raise DataError(
            f"{_single(data)} and leaving out a domain takes two. Train on it with mecam train, which validates on "
            "images held out of it; or say where its domains are, with --layout or --domain-from"
        )


def _single(data: HasDomains) -> str:
    return f"{data.name} has a single domain, {data.domains[0]!r},"
