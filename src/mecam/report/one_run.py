"""The page of a single run, finished or not: its accuracies, evaluations, mistakes, command and environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from mecam.data.domains import DomainSet
from mecam.recipe import Recipe, recipe_of
from mecam.report.commands import command, toml
from mecam.report.curves import Number, curve
from mecam.report.images import Thumbnails, class_names
from mecam.runs import RunError, RunFolder, runs_in
from mecam.serving.labelled import Labelled
from mecam.serving.page import Mistakes, confusion, document, table, wrong_images
from mecam.serving.weights import where
from mecam.splits import Part, Split, summarize
from mecam.training.reopen import reopen

PARTS = {Part.TRAINING: "training images", Part.HELD_OUT: "held-out images"}


def only_run(out: Path) -> RunFolder | None:
    """Return the run to show on a page of its own: this folder, or its only run if that has no row in a table."""
    runs = runs_in(out)
    if len(runs) != 1:
        return None
    folder = RunFolder(runs[0])
    if folder.path != out and folder.is_done() and recipe_of(folder.path).target is not None:
        return None
    return folder


def one_run_page(folder: RunFolder, *, images: bool = True) -> tuple[str, list[str]]:
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
    mistakes = [] if result is None else _mistakes(folder, recipe, notes, images=images)
    parts = [
        *(f'<p class="note">{escape(note)}</p>' for note in notes),
        table([("", ""), *_facts(recipe, splits, selected, folder.path.name)], text=(1,)),
        "<h2>Domains</h2>",
        table(_split_rows(splits, recipe.target)),
    ]
    parts += [*mistakes, "<h2>Evaluations</h2>", _evaluations(curve(records, recipe.target), recipe.target)]
    parts += ["<h2>Command</h2>", _code(command(recipe)), "<h2>Recipe</h2>", _code(toml(recipe))]
    environment = folder.read_run().get("environment")
    if isinstance(environment, dict):
        rows = [(str(name), str(value)) for name, value in environment.items()]
        parts += ["<h2>Environment</h2>", table([("", ""), *rows], text=(1,))]
    return document(f"{Path(recipe.data).name}: {recipe.method} with {recipe.optimizer}", parts), notes


def _progress(folder: RunFolder, records: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return the last saved step of a run that has not finished, and the step of its best weights so far."""
    state = folder.load_checkpoint()
    last: int = records[-1]["step"]
    if state is None:
        return last, last
    best = state["best"]["step"]
    return state["step"], last if best is None else best


def _facts(recipe: Recipe, splits: Mapping[str, Any], selected: int | None, run_id: str) -> list[tuple[str, str]]:
    summary = summarize(splits, recipe.target)
    unseen = [] if recipe.target is None else [(f"accuracy on {recipe.target}, unseen", _percent(summary.target))]
    return [
        *unseen,
        ("accuracy on the sources' held-out images", _percent(summary.validation)),
        ("weights", "averaged" if selected is None else f"of step {selected} of {recipe.steps}"),
        ("data", recipe.data),
        ("backbone", recipe.backbone),
        ("averaging", recipe.averaging),
        ("seed", str(recipe.seed)),
        ("run", run_id),
    ]


def _split_rows(splits: Mapping[str, Any], target: str | None) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("domain", "part", "images", "accuracy", "balanced accuracy", "calibration error")]
    for name, metrics in splits.items():
        split = Split.parse(name)
        part = f"{PARTS[split.part]}{', unseen' if split.domain == target else ''}"
        shares = (metrics.get(metric) for metric in ("accuracy", "balanced_accuracy", "calibration_error"))
        rows.append((split.domain, part, f"{metrics['images']:,}", *map(_percent, shares)))
    return rows


def _mistakes(folder: RunFolder, recipe: Recipe, notes: list[str], *, images: bool) -> list[str]:
    """Return the confusions of the unseen domain, or of the held-out images, and the wrong images."""
    columns = {name: column.tolist() for name, column in folder.read_predictions().items()}
    if not columns.get("label"):
        return []
    data = _data(folder, recipe, notes) if images else None
    classes = class_names(folder, data, [*columns["label"], *columns["predicted"]])
    counts = np.zeros((len(classes), len(classes)), dtype=int)
    mistakes, places = Mistakes(classes), {}
    for place, (label, predicted) in enumerate(zip(columns["label"], columns["predicted"], strict=True)):
        counts[label, predicted] += 1
        if label != predicted:
            domain, index = columns["domain"][place], columns["index"][place]
            name = f"image {index}" if data is None else data.sample_name(domain, index)
            one = Labelled(Path(name), label, str(domain))
            places[one] = (domain, index)
            mistakes.add(one, predicted, columns["confidence"][place])
    what = "held-out images of all domains" if recipe.target is None else f"{recipe.target}, unseen"
    show = _shown(data, places)
    return [
        f'<h2 id="confusion">Confusion: {escape(what)}</h2>',
        confusion(classes, counts.tolist(), mistakes),
        *wrong_images(mistakes, show, "mecam evaluate with --wrong lists those of a folder"),
    ]


def _shown(data: DomainSet | None, places: Mapping[Labelled, tuple[int, int]]) -> Callable[[Labelled], str]:
    """Return a function that makes the HTML of an image: its name, with a thumbnail if the data are here."""
    thumbnails = Thumbnails()

    def show(one: Labelled) -> str:
        image = None if data is None else thumbnails.add(data, *places[one])
        picture = "" if image is None else f'<img src="data:image/jpeg;base64,{thumbnails.images[image]}" alt=""> '
        return f"{picture}{escape(str(one.image))}"

    return show


def _data(folder: RunFolder, recipe: Recipe, notes: list[str]) -> DomainSet | None:
    """Return the data of the run if they are here and unchanged."""
    try:
        data = reopen(folder.path, recipe)
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
