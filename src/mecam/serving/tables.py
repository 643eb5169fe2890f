"""Predictions as text: CSV row by row, or one JSON list."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from mecam.serving.model import Prediction

COLUMNS = ("image", "class", "probability")
DIGITS = 6


class CSVWriter:
    """A header, then a row a prediction, written as it comes."""

    def __init__(self, file: TextIO) -> None:
        self._rows = csv.writer(file, lineterminator="\n")

    def __enter__(self) -> Self:
        self._rows.writerow(COLUMNS)
        return self

    def __exit__(self, _kind: type[BaseException] | None, _: BaseException | None, _tb: TracebackType | None) -> None:
        return

    def row(self, found: Prediction) -> None:
        self._rows.writerow(_values(found))


class JSONWriter:
    """A list of objects, an object a line, that is closed even where there are none or an error ends it."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._before = file, "\n"

    def __enter__(self) -> Self:
        self._file.write("[")
        return self

    def __exit__(self, _kind: type[BaseException] | None, _: BaseException | None, _tb: TracebackType | None) -> None:
        self._file.write("\n]\n")

    def row(self, found: Prediction) -> None:
        self._file.write(f"{self._before}  {json.dumps(dict(zip(COLUMNS, _values(found), strict=True)))}")
        self._before = ",\n"


def writer(form: str, file: TextIO) -> CSVWriter | JSONWriter:
    """The writer of this form."""
    forms: dict[str, Callable[[TextIO], CSVWriter | JSONWriter]] = {"csv": CSVWriter, "json": JSONWriter}
    if form not in forms:
        raise ValueError(f"format {form!r} is not known; csv and json are")
    return forms[form](file)


def _values(found: Prediction) -> tuple[str, str | None, float | None]:
    probability = None if found.probability is None else round(found.probability, DIGITS)
    return str(found.image), found.label, probability
