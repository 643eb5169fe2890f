"""Write predictions as CSV or JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TextIO

from mecam.columns import as_text
from mecam.serving.model import Prediction

COLUMNS = ("image", "class", "probability")
DIGITS = 6


@contextmanager
def writer(
    form: Literal["csv", "json"], file: TextIO, classes: Sequence[str] = (), judged: Sequence[str] = ()
) -> Iterator[Callable[[Prediction], Any]]:
    """Yield a function that writes one prediction, with the probabilities of `classes`.

    A JSON list has one entry per line. It is closed even if it is empty or an error ends it.

    Args:
        judged: those of "novelty" and "unknown" that the predictions have.
    """
    if form == "csv":
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow([*COLUMNS, *judged, *(f"probability of {name}" for name in classes)])

        def write_row(prediction: Prediction) -> None:
            cells = [str(prediction.image), *entry(prediction).values(), *_probabilities(prediction, classes).values()]
            rows.writerow(map(as_text, cells))

        yield write_row
        return
    separator = "\n"

    def write(prediction: Prediction) -> None:
        nonlocal separator
        file.write(f"{separator}  {json.dumps({'image': str(prediction.image), **entry(prediction, classes)})}")
        separator = ",\n"

    file.write("[")
    try:
        yield write
    finally:
        file.write("\n]\n")


def entry(prediction: Prediction, classes: Sequence[str] = ()) -> dict[str, Any]:
    """Return a prediction as JSON has it, with the probabilities of `classes`."""
    probability = None if prediction.probability is None else round(prediction.probability, DIGITS)
    novelty = {} if prediction.novelty is None else {"novelty": round(prediction.novelty, DIGITS)}
    unknown = {} if prediction.unknown is None else {"unknown": prediction.unknown}
    shares = {"probabilities": _probabilities(prediction, classes)} if classes else {}
    return {"class": prediction.label, "probability": probability, **novelty, **unknown, **shares}


def _probabilities(prediction: Prediction, classes: Sequence[str]) -> dict[str, float]:
    return {name: round(prediction.probabilities[name], DIGITS) for name in classes}
