"""The content of the page as plain values, which its JavaScript reads by these names."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mecam import __version__
from mecam.benchmark import results
from mecam.benchmark.render import CAPTIONS
from mecam.benchmark.results import Result
from mecam.benchmark.tables import AVERAGE, Cell, Row, is_unbalanced, rank_averages, rows
from mecam.data.domains import DomainSet
from mecam.figures import FIGURES
from mecam.figures.points import Missing
from mecam.figures.sweeps import Sweep, sweeps
from mecam.figures.write import images as draw
from mecam.report.commands import command, toml
from mecam.report.conclusion import Conclusion, Seconds, baseline, conclude, is_probe, seconds_per_run
from mecam.report.curves import curve, full, schedule, short
from mecam.report.images import Predictions, Thumbnails, illustrate, predictions, samples
from mecam.report.measured import Entry, read_curvature, read_surface
from mecam.runs import RunError, RunFolder
from mecam.splits import Part, Split
from mecam.training.reopen import reopen

DETAILED = 60  # runs with confusion matrix and mistakes
SURFACES = 48
T = TypeVar("T")


@dataclass(frozen=True)
class Content:
    """The page."""

    title: str
    version: str
    spread: str
    conclusions: list[Conclusion]  # by data set
    data: list[Entry]  # the data sets
    rows: list[Entry]  # of the leaderboard
    runs: list[Entry]
    grids: list[Sweep]
    rho: list[Sweep]
    curvature: list[Entry]
    surfaces: list[Entry]
    figures: list[Entry]
    environments: list[Entry]
    images: list[str]
    notes: list[str]


def gather(out: Path, *, title: str, lead: Sequence[str] = (), given: Path | str | None = None) -> Content:
    """Read the runs in a folder; `notes` names what cannot be read.

    `lead` replaces the conclusions of the runs. `given` is the user's word for their data.
    """
    all_runs, notes = results.read(out)
    without = sum(1 for _ in out.glob("*/run.json")) - len(all_runs) - len(notes)
    if without:
        notes.append(f"{without} {'run has' if without == 1 else 'runs have'} no unseen domain, not shown")
    notes += [*results.changed_data(all_runs), *results.mixed_circumstances(all_runs)]
    table = rows(all_runs)
    opened = _open(all_runs, given)
    notes += [f"images of {name} are left out: {why}" for name, why in opened.items() if isinstance(why, str)]
    thumbnails = Thumbnails()
    groups: dict[str, list[Row]] = {}
    for row in table:
        groups.setdefault(row.key.data, []).append(row)
    data = [_data(group[0], opened, thumbnails) for group in groups.values()]
    environments: list[Entry] = []
    detailed = _detailed(table)
    shown = {one.path: p for one in detailed if (p := _tried(notes, one.path, _predictions, one, opened)) is not None}
    illustrate(list(shown.values()), thumbnails)
    runs = [_run(result, environments, shown.get(result.path), notes) for result in all_runs]
    if len(detailed) < sum(result.accuracy is not None for result in all_runs):
        notes.append(f"confusion matrices and mistakes are shown for {len(detailed)} runs, best rows first")
    places = list(enumerate(result.path for result in all_runs))
    curvature = [c for n, p in places if (c := _tried(notes, p, read_curvature, p, n))]
    surfaces = [s for n, p in places if (s := _tried(notes, p, read_surface, p, n))]
    if len(surfaces) > SURFACES:
        notes.append(f"{SURFACES} of {len(surfaces)} loss surfaces are shown")
    grids, rho = sweeps(table, ("alpha", "beta")), sweeps(table, ("rho",))
    own = {"figure4": (surfaces, "landscape"), "figureIa": (rho, "settings"), "figureIb": (grids, "settings")}
    sections = {name: section for name, (shown, section) in own.items() if shown}
    seconds = seconds_per_run(table)
    return Content(
        title,
        __version__,
        CAPTIONS["stderr"],
        [Conclusion("", list(lead), "")] if lead else [conclude(group, seconds) for group in groups.values()],
        data,
        _rows(table, all_runs, seconds, {name: baseline(group, seconds) for name, group in groups.items()}),
        runs,
        grids,
        rho,
        curvature,
        surfaces[:SURFACES],
        _figures(out, all_runs, sections, notes) if all_runs else [],
        environments,
        thumbnails.images,
        notes,
    )


def _open(all_runs: Sequence[Result], given: Path | str | None) -> dict[str, DomainSet | str]:
    """Return the data sets by their names in recipes; the reason for those that cannot be opened."""
    opened: dict[str, DomainSet | str] = {}
    for name, result in {result.recipe.data: result for result in all_runs}.items():
        try:
            data = None if given is None else reopen(result.path, result.recipe, given)
            if data is None or data.fingerprint != result.fingerprint:
                data = reopen(result.path, result.recipe)
            opened[name] = data
        except (ValueError, OSError) as error:
            opened[name] = str(error)
    return opened


def _rows(
    table: Sequence[Row], all_runs: Sequence[Result], seconds: Seconds, plain: Mapping[str, Row | None]
) -> list[Entry]:
    unbalanced = {row.key.data for row in table if is_unbalanced(row)}
    ranks, order = rank_averages(table), {result.path: place for place, result in enumerate(all_runs)}
    return [
        {
            "data": row.key.data,
            "label": row.key.label.replace("optimizer_settings.", ""),
            "method": row.key.method,
            "optimizer": row.key.optimizer,
            "averaging": row.key.averaging,
            "settings": row.key.variant.replace("optimizer_settings.", ""),
            # in the order of the data set's targets, the average last
            "cells": [Cell(full(c.mean), full(c.spread), c.runs, c.missing) for c in row.cells.values()],
            "balanced": full(row.cells[AVERAGE].balanced) if row.key.data in unbalanced else None,  # of the average
            "rank": full(ranks.get(row.key)),
            "probe": is_probe(row),
            "seconds": short(seconds.get(row.key)),  # per run
            "cost": _cost(row, plain[row.key.data], seconds),
            "runs": [order[result.path] for result in row.results],
        }
        for row in table
    ]


def _cost(row: Row, plain: Row | None, seconds: Seconds) -> Entry | None:
    """Return how many times the seconds of another row this one takes."""
    if plain is None or row.key not in seconds or row.key == plain.key or seconds[plain.key] == 0:
        return None
    return {"times": short(seconds[row.key] / seconds[plain.key]), "of": plain.key.label}


def _data(row: Row, opened: Mapping[str, DomainSet | str], thumbnails: Thumbnails) -> Entry:
    """Return the data set of a row: its targets, its samples, and why there are none if so."""
    data = opened[row.results[0].recipe.data]
    absent = data if isinstance(data, str) else None
    domains = [] if isinstance(data, str) else samples(data, thumbnails)
    return {"name": row.key.data, "targets": list(row.cells)[:-1], "domains": domains, "absent": absent}


def _detailed(table: Sequence[Row]) -> list[Result]:
    """Return the runs to show in full: the first seed of every row before the second, best rows first."""
    best = sorted(table, key=lambda row: -(list(row.cells.values())[-1].mean or 0))
    finished = [run for row in best for run in row.results if run.accuracy is not None]
    return sorted(finished, key=lambda run: run.recipe.seed)[:DETAILED]


def _predictions(result: Result, opened: Mapping[str, DomainSet | str]) -> Predictions | None:
    """Return what a run predicted, with images if the data has not changed since."""
    folder, data = RunFolder(result.path), opened.get(result.recipe.data)
    if data is None or isinstance(data, str) or data.fingerprint != folder.read_result().get("data"):
        data = None
    return predictions(folder, data)


def _run(result: Result, environments: list[Entry], shown: Predictions | None, notes: list[str]) -> Entry:
    folder = RunFolder(result.path)
    outcome = folder.read_result() if result.accuracy is not None else {}
    stored = folder.read_run().get("environment")
    environment = stored if isinstance(stored, dict) else {}
    if environment not in environments:
        environments.append(environment)
    domain = str(result.recipe.target)
    scored, rest = (_images(outcome, str(Split(domain, part))) for part in (Part.TRAINING, Part.HELD_OUT))
    return {
        "id": folder.path.name,
        "target": result.target,
        "seed": result.recipe.seed,
        "accuracy": full(result.accuracy),  # on the unseen domain, percent; None: not finished
        "validation": full(result.validation),  # the sources' held-out parts, percent
        "scored": scored,  # images of the unseen domain that the accuracy is on
        "unscored": rest,
        "selected_step": outcome.get("selected_step"),
        "command": _tried(notes, result.path, command, result.recipe) or "",
        "toml": toml(result.recipe),
        "environment": environments.index(environment),
        "fingerprint": outcome.get("data"),
        "curve": _tried(notes, result.path, lambda: curve(folder.read_records(), domain)),
        "schedule": _tried(notes, result.path, schedule, result.recipe),
        "predictions": None if shown is None else shown.content,
    }


def _images(outcome: Mapping[str, Any], split: str) -> int:
    return int(outcome.get("splits", {}).get(split, {}).get("images", 0))


def _figures(out: Path, all_runs: Sequence[Result], sections: Mapping[str, str], notes: list[str]) -> list[Entry]:
    """Return the paper's figures: the section of the page that draws it itself, an image, or why there is neither.

    Without matplotlib, these are those of the page's own sections, and a note.
    """
    shown: list[Entry] = []
    for name, figure in FIGURES.items():
        about: Entry = {"title": figure.title, "about": figure.about}
        try:
            if name in sections:
                about["section"] = sections[name]
            else:
                about["image"] = base64.b64encode(draw(name, out, all_runs, formats=("svg",))["svg"]).decode()
        except Missing as missing:
            about |= {"absent": str(missing), "command": missing.command_for(out)}
        except ImportError as error:
            note = f"the paper's figures are left out: {error}"
            notes += [] if note in notes else [note]
            continue
        shown.append(about)
    return shown


def _tried(notes: list[str], path: Path, read: Callable[..., T], *args: Any) -> T | None:
    """Return what `read` returns; None and a note if it fails."""
    try:
        return read(*args)
    except (RunError, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        where = "" if str(path) in str(error) else f"{path}: "
        notes.append(f"{where}{error}; it is left out")
        return None
