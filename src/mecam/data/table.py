"""Read lists of labelled images: a CSV or Parquet file with columns path, label and perhaps domain."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mecam.data.domains import DataError

REQUIRED = ("path", "label")
COLUMNS = (*REQUIRED, "domain")
SUFFIXES = (".csv", ".parquet")


class Row(NamedTuple):
    """An image, its label and its domain; None if there is no such column."""

    place: str  # where in the file, for messages
    path: str
    label: str
    domain: str | None


def is_table(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in SUFFIXES


def read_rows(file: Path) -> list[Row]:
    """Read a table. An empty path, label or domain and a repeated path are errors."""
    rows: dict[str, Row] = {}
    for place, values in (_parquet if file.suffix.lower() == ".parquet" else _csv)(file):
        for name, value in values.items():
            if not value:
                raise DataError(f"{file}, {place}: no {name}")
        row = Row(place, Path(os.path.expanduser(values["path"])).as_posix(), values["label"], values.get("domain"))
        if row.path in rows:
            raise DataError(f"{file}, {place}: {row.path} is in {rows[row.path].place} already; remove one of them")
        rows[row.path] = row
    return list(rows.values())


def _csv(file: Path) -> Iterator[tuple[str, dict[str, str]]]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines, strict=True)
            names = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = names
            columns = _columns(file, names)
            for row in reader:
                yield f"line {reader.line_num}", {name: (row[name] or "").strip() for name in columns}
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} is not a CSV file in UTF-8 ({error}); give a list with columns path,label") from error


def _parquet(file: Path) -> Iterator[tuple[str, dict[str, str]]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(
            f"reading {file} needs pyarrow: pip install pyarrow, or write the list as a CSV file"
        ) from error
    try:
        table = pyarrow.parquet.ParquetFile(file)
        columns = _columns(file, table.schema_arrow.names)
        values: list[list[Any]] = [column.to_pylist() for column in table.read(columns=columns).itercolumns()]
    except pyarrow.ArrowException as error:
        raise DataError(f"{file} is not a Parquet file ({error}); give a list with columns path, label") from error
    for number, row in enumerate(zip(*values, strict=True), 1):
        yield (
            f"row {number}",
            {name: "" if value is None else str(value).strip() for name, value in zip(columns, row, strict=True)},
        )


def _columns(file: Path, names: list[str]) -> list[str]:
    """Return the columns to read, in the order of `names`."""
    absent = [name for name in REQUIRED if name not in names]
    if absent:
        raise DataError(
            f"{file} has no column {' and '.join(absent)}; its columns are {','.join(names)!r}, expected "
            f"path,label[,domain]{'' if len(names) > 1 else ', separated by commas'}"
        )
    return [name for name in names if name in COLUMNS]
