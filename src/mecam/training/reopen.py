"""Open the data of an earlier run."""

from __future__ import annotations

import os
from pathlib import Path

from mecam.data.domains import DataError, DomainSet
from mecam.data.open import open_data
from mecam.recipe import Recipe, is_known


def reopen(run: Path, recipe: Recipe) -> DomainSet:
    """Return the data of the run in this folder; an error for missing data names the run and what to do.

    What cannot be read is left out, as the run may have done.
    """
    try:
        return open_data(recipe.data, **{**recipe.reading, "on_error": "skip"})
    except DataError as error:
        path = Path(recipe.data).expanduser()
        if path.exists():
            raise
        what = str(error) if is_known(recipe.data) else _what_to_do(path)  # a benchmark's error names its source
        raise DataError(f"the data of the run in {run} is not found: {what}") from error


def _what_to_do(path: Path) -> str:
    link = f"ln -s WHERE_IT_IS {path}"
    if path.is_absolute():
        return f"there is no folder {path}; put it back there, or link it ({link})"
    return (
        f"there is no folder {str(path)!r} in {os.getcwd()}, and its path is relative to where the run was trained; "
        f"call mecam from there, or link it here ({link})"
    )
