"""Predictions as text: CSV row by row, or one JSON list."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from types import TracebackType
from typing import Self, TextIO

from mecam.serving.model import Prediction

COLUMNS = ("image", "class", "probability")
DIGITS = 6


class CSVWriter:
    """A header, then one row per prediction, written as they arrive."""

    def __init__(self, file: TextIO, classes: Sequence[str] = ()) -> None:
        self._rows, self._classes = csv.writer(file, lineterminator="\n"), classes

    def __enter__(self) -> Self:
        self._rows.writerow([*COLUMNS, *(f"probability of {name}" for name in self._classes)])
        return self

    def __exit__(self, _kind: type[BaseException] | None, _: BaseException | None, _tb: TracebackType | None) -> None:
        return

    def row(self, found: Prediction) -> None:
        self._rows.writerow([*_values(found), *_every(found, self._classes).values()])


class JSONWriter:
    """A list of objects, one per line; it is closed even if it is empty or an error ends it."""

    def __init__(self, file: TextIO, classes: Sequence[str] = ()) -> None:
        self._file, self._classes, self._before = file, classes, "\n"

    def __enter__(self) -> Self:
        self._file.write("[")
        return self

    def __exit__(self, _kind: type[BaseException] | None, _: BaseException | None, _tb: TracebackType | None) -> None:
        self._file.write("\n]\n")

    def row(self, found: Prediction) -> None:
        entry: dict[str, object] = dict(zip(COLUMNS, _values(found), strict=True))
        if self._classes:
            entry["probabilities"] = _every(found, self._classes)
        self._file.write(f"{self._before}  {json.dumps(entry)}")
        self._before = ",\n"


FORMS: dict[str, type[CSVWriter] | type[JSONWriter]] = {"csv": CSVWriter, "json": JSONWriter}


def writer(form: str, file: TextIO, classes: Sequence[str] = ()) -> CSVWriter | JSONWriter:
    """The writer of this format; it also writes the probabilities of these classes."""
    check_form(form)
    return FORMS[form](file, classes)


def check_form(form: str) -> None:
    """Refuse an unknown format before a model is loaded."""
    if form not in FORMS:
        raise ValueError(f"there is no format {form!r}; there are csv and json")


def _every(found: Prediction, classes: Sequence[str]) -> dict[str, float]:
    return {name: round(found.probabilities[name], DIGITS) for name in classes}


def _values(found: Prediction) -> tuple[str, str | None, float | None]:
    probability = None if found.probability is None else round(found.probability, DIGITS)
    return str(found.image), found.label, probability
