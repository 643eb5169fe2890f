"""`mecam data list`, `check` and `pack`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mecam.cli._app import command, data_app
from mecam.cli.options import AllowMissingClasses, DomainFrom, FolderArgument, Layout, Quiet, SkipUnreadable, Workers
from mecam.columns import visible

if TYPE_CHECKING:
    from mecam.data.domains import HasDomains
    from mecam.data.scan import MissingClasses


@command("mecam data list", group=data_app, name="list")
def data_list() -> None:
    """List the data sets known by name, and where to get them."""
    from mecam.listing import lines

    print("\n".join(lines("data", verbose=True)))


@command(
    "mecam data check root",
    "mecam data check benchmarks/PACS",
    "mecam data check images --name OfficeHome",
    "mecam data check packed",
    group=data_app,
    name="check",
)
def data_check(
    folder: FolderArgument,
    name: Annotated[
        str | None, typer.Option(help="Benchmark to compare with. Default: the benchmark of the folder's name.")
    ] = None,
    layout: Layout = None,
    domain_from: DomainFrom = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> int:
    """Count the images of a folder by domain and class, decode each, and report problems.

    For a benchmark (by --name, or by the folder's name), report what is missing or extra. For a store, check that every
    byte is as it was packed. Compare every file with its packed copy in the cache, if there is one. Report images that
    occur in several domains or under several labels, and those that look alike. The exit code is 1 if there is a
    problem.
    """
    from mecam.data.duplicates import MOST, pictures_of
    from mecam.data.folder import scan
    from mecam.data.inventory import Inventory
    from mecam.data.known import check, find, is_known
    from mecam.data.open import stale
    from mecam.data.pack import inspect
    from mecam.data.scan import listed
    from mecam.data.store import Store, is_store
    from mecam.progress import shown

    if is_store(folder):
        store = Store(folder)
        store.verify()
        same = pictures_of(store, looks=len(store) <= MOST).duplicates()
        print("\n".join([f"{folder}: {len(store)} images, all as they were packed", *same.notes(), *same.problems()]))
        return 1 if same.problems() else 0
    images = scan(folder, layout=layout, domain_from=domain_from, missing_classes="allow")
    if changed := stale(images):
        print(
            f"{len(changed)} images have other content than when they were packed, and the same names, sizes and times "
            f"({listed(changed, 3)}); they are packed again on their next use"
        )
    own = name is None and not is_known(images.name)
    known = None if own else find(name or images.name)
    with shown(quiet=quiet) as progress:
        inventory = Inventory(images, *inspect(images, workers=workers, progress=progress))
    if known is None:
        inventory.show()
        return 0 if inventory.fine else 1
    problems = [*check(images, known), *inventory.of_images()]
    print("\n".join([*inventory.duplicates.notes(), *(problems or [f"{folder} is a complete {known.name}"])]))
    return 1 if problems else 0


@command(
    "mecam data pack root --out packed",
    "mecam data pack root --out packed --skip-unreadable --allow-missing-classes",
    group=data_app,
    name="pack",
    resumes=True,
)
def data_pack(
    folder: FolderArgument,
    out: Annotated[Path, typer.Option(help="Store to write.")],
    mode: Annotated[str, typer.Option(help="Storage: auto, decoded or encoded.")] = "auto",
    workers: Workers = None,
    side: Annotated[int, typer.Option(help="Pixels per side of images that are larger, or differ in size.")] = 320,
    skip_unreadable: SkipUnreadable = False,
    layout: Layout = None,
    domain_from: DomainFrom = None,
    allow_missing_classes: AllowMissingClasses = False,
    quiet: Quiet = False,
) -> None:
    """Decode a folder into a memory-mapped store, which --data accepts instead of the folder."""
    from mecam.data.folder import scan
    from mecam.data.pack import pack
    from mecam.progress import shown

    with shown(quiet=quiet) as progress:
        on_error = "skip" if skip_unreadable else "refuse"
        missing: MissingClasses = "allow" if allow_missing_classes else "error"
        images = scan(folder, layout=layout, domain_from=domain_from, missing_classes=missing)
        options = {"mode": mode, "workers": workers, "side": side, "on_error": on_error}
        store = pack(images, out, progress=progress, **options)  # type: ignore[arg-type]
    print_notes(store)
    print(f"{out}: {len(store)} images")


def print_notes(data: HasDomains) -> None:
    """Print what to know about the data before training on it."""
    from mecam.data.notes import notes_on

    for note in notes_on(data):
        print(visible(note if note.startswith("skipped") else f"mecam: {note}"), file=sys.stderr)
