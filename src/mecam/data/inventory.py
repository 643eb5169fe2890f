"""Report the content and the problems of a folder of images."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mecam.columns import aligned
from mecam.data import notes
from mecam.data.duplicates import Duplicates
from mecam.data.scan import Scan, listed
from mecam.data.store import Skipped


@dataclass(frozen=True)
class Inventory:
    """A folder's images, those that cannot be read, and duplicates (`mecam.data.pack.inspect`)."""

    scan: Scan
    unreadable: tuple[Skipped, ...] = ()
    duplicates: Duplicates = field(default_factory=Duplicates)

    @property
    def counts(self) -> list[list[int]]:
        """Return the number of images per domain and class, unreadable ones included."""
        labels = (self.scan.labels(domain) for domain in range(len(self.scan.domains)))
        return [np.bincount(each, minlength=len(self.scan.classes)).tolist() for each in labels]

    @property
    def fine(self) -> bool:
        """Return whether training can use all images."""
        return not self.problems() and not self.scan.dead

    def problems(self) -> list[str]:
        """Return one sentence per problem."""
        lacking = [
            f"domain {domain!r} has no images of class {name!r}"
            for domain, names in self.scan.lacking.items()
            for name in names
        ]
        empty = [f"class folder {folder!r} has no images in it" for folder in self.scan.empty]
        return [*lacking, *empty, *self.of_images()]

    def of_images(self) -> list[str]:
        """Return one sentence per image that cannot be read and per group of equal images."""
        return [*(" ".join(image.reason.split()) for image in self.unreadable), *self.duplicates.problems()]

    def ignored(self) -> list[str]:
        """Return one line for each ignored file or folder, and for each pair of similar pictures."""
        hidden = [f"hidden, ignored: {listed(self.scan.hidden, 3)}"] if self.scan.hidden else []
        return [*self.scan.notes, *hidden, *self.duplicates.notes()]

    def show(self) -> None:
        """Print the counts, what is ignored, and the problems."""
        counts = np.array(self.counts).T
        named = zip((*self.scan.classes, "all"), (*counts, counts.sum(0)), strict=True)
        rows = [(name, *(f"{count:,}" for count in (*row, row.sum()))) for name, row in named]
        lines = [*aligned([("class", *self.scan.domains, "all"), *rows]), *self.ignored(), *self.problems()]
        if self.fine:
            lines.append(f"{notes.counts(self.scan)}, all of which can be read")
        print("\n".join(lines))
