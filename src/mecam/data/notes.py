"""Notes and warnings about a data set, before training on it."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from mecam.data.domains import DataWarning, DomainSet, HasDomains
from mecam.data.duplicates import warning
from mecam.data.scan import Scan
from mecam.data.store import Store


def notes_on(data: HasDomains) -> list[str]:
    """Return one line for each reason why results on this data may be misleading."""
    notes = [f"skipped: {' '.join(image.reason.split())}" for image in getattr(data, "skipped", ())]  # a store has it
    if len(data.domains) == 1:
        notes.append(
            f"{data.name} has a single domain, {data.domains[0]!r}: the model is validated on images held out of it, "
            "which says nothing about other domains"
        )
    if isinstance(data, Store) and (same := warning(data)) is not None:
        notes.append(same)
    return notes


def warn_about(data: HasDomains, warn: Callable[[Warning], None] = warnings.warn) -> None:
    """Warn of what `notes_on` returns."""
    for note in notes_on(data):
        warn(DataWarning(note))


def counts(data: DomainSet | Scan) -> str:
    """Return the numbers of domains, classes and images."""
    images = sum(len(data.labels(domain)) for domain in range(len(data.domains)))
    domains = "1 domain" if len(data.domains) == 1 else f"{len(data.domains)} domains"
    classes = "1 class" if len(data.classes) == 1 else f"{len(data.classes)} classes"
    return f"{domains}, {classes}, {images:,} images"
