"""Find images that occur in more than one domain or under more than one label, which makes accuracies too high.

Equal files have equal digests. Pictures that were resized, compressed again or brightened look the same: their
gradients in an 8 x 8 grid (dHash) differ in a few bits, and their 16 x 16 thumbnails are correlated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mecam.data.scan import listed
from mecam.data.store import Store

GRID, THUMBNAIL = 8, 16
HASH_BYTES = GRID * GRID // 8
BITS, CORRELATION = 6, 0.95  # how far pictures that look the same may differ
MOST = 50_000  # images of which all pairs are compared: some seconds
ROWS = 256  # of the matrix of pairs, at once


@dataclass(frozen=True)
class Duplicates:
    """Names of images that are the same, in groups that span domains or labels, and of pairs that look the same."""

    across_domains: tuple[tuple[str, ...], ...] = ()
    across_labels: tuple[tuple[str, ...], ...] = ()  # in one domain
    alike: tuple[tuple[str, ...], ...] = ()
    compared: bool = True  # whether pairs of similar pictures were searched for

    def problems(self, most: int = 20) -> list[str]:
        """Return a sentence for each group of equal images."""
        found = {"in several domains": self.across_domains, "under several labels": self.across_labels}
        lines = [f"the same image {where}: {listed(names)}" for where, groups in found.items() for names in groups]
        return _first(lines, most)

    def notes(self, most: int = 20) -> list[str]:
        """Return a sentence for each pair that looks the same."""
        lines = [f"nearly the same image in another domain or class: {listed(names)}" for names in self.alike]
        skipped = [] if self.compared else [f"more than {MOST:,} images: not searched for images that look alike"]
        return [*_first(lines, most), *skipped]


@dataclass(frozen=True)
class Pictures:
    """The values of each image that are compared."""

    name: Callable[[int], str]
    domains: NDArray[np.int64]
    labels: NDArray[np.int64]
    digests: NDArray[np.uint64]
    looks: NDArray[np.uint8] | None = None  # a row of `look` for each image

    def duplicates(self) -> Duplicates:
        same = sorted(_groups(self.digests, self.domains, self.labels), key=lambda group: int(group[0]))
        across = [len(np.unique(self.domains[group])) > 1 for group in same]
        compared = self.looks is not None and len(self.digests) <= MOST
        return Duplicates(
            tuple(self._named(group) for group, domains in zip(same, across, strict=True) if domains),
            tuple(self._named(group) for group, domains in zip(same, across, strict=True) if not domains),
            tuple(map(self._named, self._alike())) if compared else (),
            compared,
        )

    def _named(self, images: NDArray[np.int64]) -> tuple[str, ...]:
        return tuple(map(self.name, images.tolist()))

    def _alike(self) -> list[NDArray[np.int64]]:
        """Return the pairs of different files that look the same, of different domains or labels."""
        assert self.looks is not None
        hashes = np.ascontiguousarray(self.looks[:, :HASH_BYTES]).view(np.uint64)[:, 0]
        thumbnails = self.looks[:, HASH_BYTES:].astype(np.float32)
        thumbnails -= thumbnails.mean(1, keepdims=True)
        thumbnails /= np.maximum(np.linalg.norm(thumbnails, axis=1, keepdims=True), 1e-6)
        pairs = []
        for start in range(0, len(hashes), ROWS):
            rows = slice(start, start + ROWS)
            first, second = np.nonzero(np.bitwise_count(hashes[rows, None] ^ hashes[None, start:]) <= BITS)
            first, second = first + start, second + start
            differ = (self.domains[first] != self.domains[second]) | (self.labels[first] != self.labels[second])
            kept = (first < second) & differ & (self.digests[first] != self.digests[second])
            first, second = first[kept], second[kept]
            alike = np.einsum("ij,ij->i", thumbnails[first], thumbnails[second]) >= CORRELATION
            pairs += list(np.stack([first[alike], second[alike]], axis=1))
        return pairs


def look(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the bits and the thumbnail of a picture, (3, height, width), in one row of bytes."""
    grey = Image.fromarray(pixels.transpose(1, 2, 0)).convert("L")
    grid = np.asarray(grey.resize((GRID + 1, GRID), Image.Resampling.BOX))
    thumbnail = np.asarray(grey.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX))
    return np.concatenate([np.packbits(grid[:, 1:] > grid[:, :-1]), thumbnail.ravel()])


def pictures_of(store: Store, *, looks: bool = False) -> Pictures:
    """Return the values by which the images of a store are compared."""
    labels = [store.labels(domain) for domain in range(len(store.domains))]
    places = [(domain, image) for domain, own in enumerate(labels) for image in range(len(own))]
    rows = [look(store.images(domain, [image])[0].numpy()) for domain, image in places] if looks else None
    return Pictures(
        name=lambda image: store.sample_name(*places[image]),
        domains=np.repeat(np.arange(len(labels)), list(map(len, labels))),
        labels=np.concatenate(labels),
        digests=np.concatenate([store.digests(domain) for domain in range(len(labels))]),
        looks=None if rows is None else np.stack(rows),
    )


def warning(store: Store) -> str | None:
    """Return one line on images of a store that occur in several domains or under several labels."""
    found = pictures_of(store).duplicates()
    counts = [
        f"{len(groups):,} {'image occurs' if len(groups) == 1 else 'images occur'} {where}"
        for groups, where in (
            (found.across_domains, "in several domains"),
            (found.across_labels, "under several labels of a domain"),
        )
        if groups
    ]
    if not counts:
        return None
    example = (*found.across_domains, *found.across_labels)[0]
    return (
        f"{' and '.join(counts)} of {store.name}, such as {listed(example, 2)}: accuracies may be too high. "
        "mecam data check lists them"
    )


def _groups(keys: NDArray[np.uint64], domains: NDArray[np.int64], labels: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the images with equal keys that differ in domain or label, each group in order."""
    if not len(keys):
        return []
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    starts = np.flatnonzero(np.concatenate([[True], sorted_keys[1:] != sorted_keys[:-1]]))
    differ = np.zeros(len(starts), dtype=bool)
    for values in (domains[order], labels[order]):
        differ |= np.maximum.reduceat(values, starts) != np.minimum.reduceat(values, starts)
    ends = np.append(starts[1:], len(keys))
    return [order[start:end] for start, end in zip(starts[differ], ends[differ], strict=True)]


def _first(lines: list[str], most: int) -> list[str]:
    return lines if len(lines) <= most else [*lines[:most], f"and {len(lines) - most} more like these"]
