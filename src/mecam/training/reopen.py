"""Open the data and the initial weights of an earlier run, which may come from someone else."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from mecam.data import used
from mecam.data.domains import DataError, DomainSet
from mecam.data.open import cache_folder, locate, open_data
from mecam.models.weights import WeightsError, find_weights
from mecam.recipe import Recipe, is_known
from mecam.runs import RunFolder


def reopen(run: Path, recipe: Recipe, data: Path | str | None = None) -> DomainSet:
    """Return the data of the run in this folder; an error for missing data names the run and what to do.

    What cannot be read is left out, as the run may have done. A path in the recipe is opened only if this user has
    opened it before with the content that the run has; `data` is the user's own word for it.
    """
    reading = {**recipe.reading, "skip_unreadable": True}
    if data is not None:
        return open_data(data, **reading)
    try:
        _require_used(run, recipe)
        return open_data(recipe.data, **reading)
    except DataError as error:
        path = Path(os.path.expanduser(recipe.data))
        if path.exists():
            raise
        what = str(error) if is_known(recipe.data) else _what_to_do(path)  # a benchmark's error names its source
        raise DataError(f"the data of the run in {run} is not found: {what}") from error


def require_weights(run: Path, recipe: Recipe, weights: Path | str | None = None) -> None:
    """Raise an error if the recipe starts from a file that this user neither used before nor names as `weights`."""
    if recipe.weights is None or (weights is not None and os.path.realpath(weights) == _weights_path(recipe)):
        return
    if not used.is_noted(cache_folder(), _weights_path(recipe), _fingerprint(run, "weights")):
        raise WeightsError(
            f"the run in {run} starts from the file {recipe.weights}, which you have not used here before; if you "
            f"trust it, give --weights {recipe.weights}"
        )


def note_weights(recipe: Recipe, digest: str | None) -> None:
    """Note that the user started a run from this file."""
    if recipe.weights is not None and digest is not None:
        with suppress(DataError):  # there is no home folder
            used.note(cache_folder(), _weights_path(recipe), digest)


def _weights_path(recipe: Recipe) -> str:
    return os.path.realpath(find_weights(str(recipe.weights)))


def _require_used(run: Path, recipe: Recipe) -> None:
    """Raise an error if the recipe names a path that this user has not opened with this content."""
    if is_known(recipe.data) and not Path(recipe.data).exists():
        return
    path = locate(recipe.data)
    if not used.is_noted(cache_folder(), path, _fingerprint(run, "data")):
        raise DataError(
            f"the run in {run} names the data {path}, which you have not opened here with this content; if they are "
            f"its data, give --data {path}"
        )


def _fingerprint(run: Path, name: str) -> str:
    """Return the digest of the data or the weights that the run was trained on; "" if it has none."""
    folder = RunFolder(run)
    prints = folder.read_run().get("fingerprints")
    value = prints.get(name) if isinstance(prints, dict) else None
    if value is None and name == "data" and folder.is_done():
        value = folder.read_result().get("data")
    return str(value or "")


def _what_to_do(path: Path) -> str:
    link = f"ln -s WHERE_IT_IS {path}"
    if path.is_absolute():
        return f"there is no folder {path}; put it back there, link it ({link}), or give its place by --data"
    return (
        f"there is no folder {str(path)!r} in {os.getcwd()}, and its path is relative to where the run was trained; "
        f"call mecam from there, link it here ({link}), or give its place by --data"
    )
