"""`mecam list`, `doctor`, and `data list`, `check` and `pack`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mecam.cli._app import command, data_app, warn
from mecam.cli.options import FolderArgument, Quiet, Workers, given, recipe_options
from mecam.progress import shown
from mecam.recipe import READING


@command("mecam list", "mecam list optimizers --verbose", "mecam list profiles", "mecam list recipe", name="list")
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="methods, optimizers, averagings, virtual, measures, backbones, data, profiles, recipe. Default: all."
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Include hyperparameters, sizes and sources.")] = False,
) -> None:
    """List methods, optimizers, backbones, data sets and more."""
    from mecam.listing import lines

    print("\n".join(lines(kind, verbose=verbose)))


@command("mecam doctor")
def doctor() -> None:
    """Report hardware, installed packages and known problems."""
    from mecam.doctor import health

    print("\n".join(health()))


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
@recipe_options("layout", "domain_from")
def data_check(
    folder: FolderArgument,
    name: Annotated[
        str | None, typer.Option(help="Benchmark to compare with. Default: the benchmark of the folder's name.")
    ] = None,
    workers: Workers = None,
    quiet: Quiet = False,
    **entries: Any,
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

    if is_store(folder):
        store = Store(folder)
        store.verify()
        same = pictures_of(store, looks=len(store) <= MOST).duplicates()
        print("\n".join([f"{folder}: {len(store)} images, all as they were packed", *same.notes(), *same.problems()]))
        return 1 if same.problems() else 0
    images = scan(folder, **given(entries), allow_missing_classes=True)
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
@recipe_options(*READING)
def data_pack(
    folder: FolderArgument,
    out: Annotated[Path, typer.Option(help="Store to write.")],
    mode: Annotated[Literal["auto", "decoded", "encoded"], typer.Option(help="Storage.")] = "auto",
    workers: Workers = None,
    side: Annotated[
        int, typer.Option(min=1, help="Pixels per side of images that are larger or differ in size.")
    ] = 320,
    quiet: Quiet = False,
    **entries: Any,
) -> None:
    """Decode a folder into a memory-mapped store, which --data accepts instead of the folder."""
    from mecam.data.folder import scan
    from mecam.data.notes import warn_about
    from mecam.data.pack import pack

    skip = bool(entries.pop("skip_unreadable"))
    images = scan(folder, **given(entries))
    with shown(quiet=quiet) as progress:
        store = pack(images, out, mode=mode, workers=workers, side=side, skip_unreadable=skip, progress=progress)
    warn_about(store, warn)
    print(f"{out}: {len(store)} images")
