"""The page of a single run, finished or not: its accuracies, evaluations, mistakes, command and environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from mecam.data.domains import DomainSet
from mecam.recipe import Recipe, recipe_of
from mecam.report.commands import command, toml
from mecam.report.curves import Number, curve
from mecam.report.images import COLUMNS, class_names, image_name, picture, read_columns
from mecam.runs import RunError, RunFolder, runs_in
from mecam.runs.summary import accuracies, parts, time_taken
from mecam.serving.chart import calibration_plot
from mecam.serving.page import Mistakes, confusion, document, table, wrong_images
from mecam.serving.tally import Tally
from mecam.serving.weights import where
from mecam.splits import Part, Split
from mecam.storage.checksums import read_sealed
from mecam.training.reopen import reopen

PARTS = {Part.TRAINING: "training images", Part.HELD_OUT: "held-out images"}
UNSEEN = {Part.TRAINING: "unseen, scored", Part.HELD_OUT: "unseen, not scored"}
VERDICT = "verdict.json"  # of mecam fit


def only_run(out: Path) -> RunFolder | None:
    """Return the run to show on a page of its own: this folder, or its only run if that has no row in a table."""
    runs = runs_in(out)
    if len(runs) != 1:
        return None
    folder = RunFolder(runs[0])
    if folder.path != out and folder.is_done() and recipe_of(folder.path).target is not None:
        return None
    return folder


def one_run_page(folder: RunFolder, *, data: Path | str | None = None) -> tuple[str, list[str]]:
    """Return the page of a run, and notes: where it was stopped, and what is left out."""
    recipe, records, notes = recipe_of(folder.path), folder.read_records(), []
    result = folder.read_result() if folder.is_done() else None
    if not records and result is None:
        raise RunError(
            f"the run in {folder.path} has not been evaluated yet, so there is nothing to report. Run its mecam train "
            "command again to resume it"
        )
    selected = None if result is None else result.get("selected_step")
    if result is None:
        step, selected = _progress(folder, records)
        notes.append(f"{where(folder, step)}; accuracies are those after step {selected}")
    chosen = next((record for record in records if record["step"] == selected), records[-1] if records else {})
    splits = chosen["splits"] if result is None else result["splits"]
    mistakes = [] if result is None else _mistakes(folder, recipe, notes, data)
    weights = "averaged" if selected is None else f"of step {selected} of {recipe.steps}"
    facts = [*accuracies(splits, recipe.target), ("weights", weights), *parts(recipe.to_dict()), *time_taken(folder)]
    page = [
        *_verdict(folder),
        *(f'<p class="note">{escape(note)}</p>' for note in notes),
        table([("", ""), *facts, ("run", folder.path.name)], text=(1,)),
        "<h2>Domains</h2>",
        table(_split_rows(splits, recipe.target)),
    ]
    page += [*mistakes, "<h2>Evaluations</h2>", _evaluations(curve(records, recipe.target), recipe.target)]
    page += ["<h2>Command</h2>", _code(command(recipe)), "<h2>Recipe</h2>", _code(toml(recipe))]
    environment = folder.read_run().get("environment")
    if isinstance(environment, dict):
        rows = [(str(name), str(value)) for name, value in environment.items()]
        page += ["<h2>Environment</h2>", table([("", ""), *rows], text=(1,))]
    return document(f"{Path(recipe.data).name}: {recipe.method} with {recipe.optimizer}", page), notes


def _verdict(folder: RunFolder) -> Iterator[str]:
    """Yield what mecam fit found out about this model; nothing for other runs."""
    file = folder.path / VERDICT
    for place, line in enumerate(read_sealed(file).get("lines", ()) if file.exists() else ()):
        yield f"<p>{escape(str(line))}</p>" if place else f"<p><strong>{escape(str(line))}</strong></p>"


def _progress(folder: RunFolder, records: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return the last saved step of a run that has not finished, and the step of its best weights so far."""
    state = folder.load_checkpoint()
    last: int = records[-1]["step"]
    if state is None:
        return last, last
    best = state["best"]["step"]
    return state["step"], last if best is None else best


def _split_rows(splits: Mapping[str, Any], target: str | None) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("domain", "part", "images", "accuracy", "balanced accuracy", "calibration error")]
    for name, metrics in splits.items():
        split = Split.parse(name)
        part = (UNSEEN if split.domain == target else PARTS)[split.part]
        shares = (metrics.get(metric) for metric in ("accuracy", "balanced_accuracy", "calibration_error"))
        rows.append((split.domain, part, f"{metrics['images']:,}", *map(_percent, shares)))
    return rows


def _mistakes(folder: RunFolder, recipe: Recipe, notes: list[str], given: Path | str | None) -> list[str]:
    """Return the confusions of the unseen domain, or of the held-out images, and the wrong images."""
    columns = read_columns(folder)
    if not columns:
        return []
    data = _data(folder, recipe, notes, given)
    classes = class_names(folder, data, columns)
    tally, mistakes = Tally(len(classes)), Mistakes(classes)
    tally.add(columns["label"], columns["predicted"], columns["confidence"])
    for domain, index, label, predicted, confidence in zip(*(columns[name].tolist() for name in COLUMNS), strict=True):
        if label != predicted:
            mistakes.add(label, predicted, confidence, (domain, index))

    def shown(place: tuple[int, int]) -> str | None:
        return None if data is None else picture(data, *place)

    what = escape("held-out images of all domains" if recipe.target is None else f"{recipe.target}, unseen")
    elsewhere = "mecam evaluate with --wrong lists those of a folder"
    return [
        f"<h2>Calibration: {what}</h2>",
        calibration_plot(tally.bins),
        f'<h2 id="confusion">Confusion: {what}</h2>',
        confusion(tally.confusion.tolist(), mistakes),
        *wrong_images(mistakes, shown, lambda place: escape(image_name(data, *place)), elsewhere),
    ]


def _data(folder: RunFolder, recipe: Recipe, notes: list[str], given: Path | str | None) -> DomainSet | None:
    """Return the data of the run if they are here and unchanged."""
    try:
        data = reopen(folder.path, recipe, given)
    except (ValueError, OSError) as error:
        notes.append(f"images are left out: {error}")
        return None
    if data.fingerprint == folder.read_result().get("data"):
        return data
    notes.append(f"images are left out: {recipe.data} changed since the run was trained")
    return None


def _evaluations(evaluations: Mapping[str, Any], target: str | None) -> str:
    unseen = [] if target is None else [f"{target}, unseen"]
    rows: list[tuple[str, ...]] = [("step", "sources' held-out images", "their loss", *unseen)]
    names = ("steps", "source_accuracy", "source_loss", *(["target_accuracy"] if unseen else []))
    for step, accuracy, loss, *others in zip(*(evaluations[name] for name in names), strict=True):
        rows.append((str(step), _points(accuracy), "-" if loss is None else f"{loss:g}", *map(_points, others)))
    return table(rows)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _points(percent: Number) -> str:
    return "-" if percent is None else f"{percent:.1f} %"


def _code(text: str) -> str:
    return f"<pre><code>{escape(text)}</code></pre>"
