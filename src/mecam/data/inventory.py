"""What a folder of one's own holds, and what is wrong with it."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from mecam.data.folder import Scan, listed
from mecam.data.store import Skipped

WIDE = 10_000  # columns, where nobody looks at a screen


@dataclass(frozen=True)
class Inventory:
    """A folder's images, and those among them that cannot be read (`mecam.data.pack.unreadable`)."""

    scan: Scan
    unreadable: tuple[Skipped, ...] = ()

    @property
    def counts(self) -> list[list[int]]:
        """Images of each class, by domain; those that cannot be read are counted too."""
        labels = (self.scan.labels(domain) for domain in range(len(self.scan.domains)))
        return [np.bincount(each, minlength=len(self.scan.classes)).tolist() for each in labels]

    @property
    def fine(self) -> bool:
        """Whether it can be trained on as it is, without losing anything that was meant to be in it."""
        return not self.problems() and not self.scan.dead

    def problems(self) -> list[str]:
        """A sentence each."""
        lacking = [
            f"domain {domain!r} has no images of class {name!r}"
            for domain, counts in zip(self.scan.domains, self.counts, strict=True)
            for name, count in zip(self.scan.classes, counts, strict=True)
            if not count
        ]
        empty = [f"class folder {folder!r} has no images in it" for folder in self.scan.empty]
        return [*lacking, *empty, *(" ".join(image.reason.split()) for image in self.unreadable)]

    def ignored(self) -> list[str]:
        """What is passed over in training, a line each."""
        hidden = [f"hidden, ignored: {listed(self.scan.hidden, 3)}"] if self.scan.hidden else []
        return [*self.scan.notes, *hidden]

    def show(self) -> None:
        """Print it: counts, what is ignored, what is wrong."""
        from rich.console import Console
        from rich.table import Table

        # names may have brackets in them; off a terminal nothing is cut to a width
        console = Console(width=None if sys.stdout.isatty() else WIDE, markup=False, highlight=False, emoji=False)
        table = Table(box=None, pad_edge=False)
        table.add_column("class", overflow="fold")
        for domain in (*self.scan.domains, "all"):
            table.add_column(domain, justify="right", overflow="fold")
        for name, row in zip(self.scan.classes, zip(*self.counts, strict=True), strict=True):
            table.add_row(name, *(f"{count:,}" for count in (*row, sum(row))))
        table.add_row("all", *(f"{len(files):,}" for files in self.scan.files), f"{len(self.scan):,}")
        console.print(table)
        for line in (*self.ignored(), *self.problems()):
            console.print(line, soft_wrap=True)
        if self.fine:
            counts = f"{len(self.scan.domains)} domains, {len(self.scan.classes)} classes, {len(self.scan):,} images"
            console.print(f"{counts}, all of which can be read", soft_wrap=True)
