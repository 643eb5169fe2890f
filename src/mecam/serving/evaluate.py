"""Evaluate a trained model on labelled images."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from mecam.columns import as_text
from mecam.data.domains import DataError
from mecam.progress import Event, Progress, no_lines, showing
from mecam.runs import write_atomic
from mecam.serving.confidence import Together
from mecam.serving.evaluation import Evaluation, summarize
from mecam.serving.labelled import Labelled, find_labelled
from mecam.serving.model import Prediction, TrainedModel, load_model
from mecam.serving.page import Mistakes, evaluation_page
from mecam.serving.tables import DIGITS
from mecam.serving.tally import Tally
from mecam.storage.files import make_folder, writing

Write = Callable[[Labelled, Prediction], object]


def evaluate(
    model: TrainedModel | os.PathLike[str] | str,
    folder: Path | str,
    *,
    wrong: Path | str | None = None,
    out: Path | str | None = None,
    device: str = "auto",
    progress: Progress | bool = False,
) -> Evaluation:
    """Evaluate a model on the images of a folder or a CSV file, as `mecam evaluate` does.

    Images are read one batch at a time. Those that cannot be read are in `unreadable` of the result, not in its counts.

    Args:
        model: a run or its folder, the --out of mecam train or mecam fit, or what `load_model` returned.
        folder: <class>/<image> or <domain>/<class>/<image>, or a CSV file with columns path, label and optionally
            domain, whose paths are relative to its folder. Classes are matched by name.
        wrong: a CSV file to write, with a row per misclassified image and the probabilities of all classes.
        out: a self-contained HTML file to write.
        device: "auto", "cpu", "cuda", ...; a loaded model stays where it is.
        progress: True shows a bar on a terminal or in a notebook. A function gets an event per image.
    """
    if not isinstance(model, TrainedModel):
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        model = load_model(model, device=device)
    images, ignored = find_labelled(Path(folder), model.classes)
    tallies: dict[str, Tally] = {}
    unreadable: list[str] = []
    mistakes = Mistakes(model.classes)
    together = None if model.confidence is None else Together(model.confidence)
    wrong_file = _wrong_file(None if wrong is None else Path(wrong), model.classes)
    with wrong_file as write, showing(progress, lines=no_lines) as show:
        predictions = model.predictions([one.image for one in images], together=together)
        for done, (one, prediction) in enumerate(zip(images, predictions, strict=True), start=1):
            show(Event("evaluating", done, len(images), "images"))
            if prediction.label is None or prediction.probability is None:
                unreadable.append(str(prediction.error))
                continue
            predicted = model.classes.index(prediction.label)
            tally = tallies.setdefault(one.domain, Tally(len(model.classes)))
            tally.add(one.label, predicted, prediction.probability)
            if predicted != one.label:
                write(one, prediction)
                if out is not None:
                    mistakes.add(one.label, predicted, prediction.probability, one.image)
    if not tallies:
        raise DataError(f"no image of {folder} can be read: {unreadable[0]}")
    evaluation = summarize(model.classes, tallies, unreadable=unreadable, ignored=ignored, stopped=model.stopped)
    if together is not None and together.novelty is not None:
        evaluation = replace(evaluation, novelty=together.novelty, nearest=together.nearest)
    if out is not None:
        make_folder(Path(out).parent)
        write_atomic(out, evaluation_page(evaluation, mistakes, Path(folder), Path(out)).encode("utf-8", "replace"))
    return evaluation


@contextmanager
def _wrong_file(file: Path | None, classes: Sequence[str]) -> Iterator[Write]:
    """Yield a function that adds a misclassified image to a CSV file, which appears in full at the end."""
    if file is None:
        yield lambda _one, _prediction: None
        return
    make_folder(file.parent)
    part = file.with_name(f".{file.name}.part")
    try:
        with writing(file), part.open("w", newline="", encoding="utf-8", errors="surrogateescape") as lines:
            rows = csv.writer(lines, lineterminator="\n")
            columns = ("image", "domain", "label", "predicted", "probability")
            rows.writerow([*columns, *(f"probability of {name}" for name in classes)])

            def write(one: Labelled, prediction: Prediction) -> None:
                shares = (prediction.probability, *prediction.probabilities.values())
                own = (str(one.image), one.domain, classes[one.label], prediction.label)
                rows.writerow([*map(as_text, own), *(round(share or 0.0, DIGITS) for share in shares)])

            yield write
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)
