"""The content of the page as plain values, which its JavaScript reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mecam import __version__
from mecam.benchmark import results
from mecam.benchmark.render import CAPTIONS
from mecam.benchmark.results import Result
from mecam.benchmark.tables import Cell, Spread, rank_averages, rows
from mecam.data.domains import DomainSet
from mecam.figures.sweeps import Sweep, sweeps
from mecam.report.commands import command, toml
from mecam.report.curves import Curve, Number, Schedule, curve, full, schedule
from mecam.report.figures import FigureView, figures
from mecam.report.measured import Curvature, Surface, read_curvature, read_surface
from mecam.report.mistakes import Predictions, predictions
from mecam.report.thumbnails import Domain, Thumbnails, samples
from mecam.runs import RunError, RunFolder
from mecam.training.reopen import reopen

DETAILED = 60  # runs with confusion matrix and mistakes
SURFACES = 48
T = TypeVar("T")


@dataclass(frozen=True)
class RunView:
    """One run."""

    id: str
    target: str
    seed: int
    accuracy: Number  # on the unseen domain, percent; None: not finished
    validation: Number  # the sources' held-out parts, percent
    selected_step: int | None
    command: str
    toml: str
    environment: int  # index into Content.environments
    fingerprint: str | None  # the data's
    curve: Curve | None
    schedule: Schedule | None
    predictions: Predictions | None


@dataclass(frozen=True)
class RowView:
    """A row of the leaderboard: its cells in the order of its data set's targets, the average last."""

    data: str
    label: str
    method: str
    optimizer: str
    averaging: str
    settings: str
    cells: list[Cell]
    rank: Number
    runs: list[int]


@dataclass(frozen=True)
class DataView:
    """A data set: its targets, its samples, and why there are none if so."""

    name: str
    targets: list[str]
    domains: list[Domain]
    absent: str | None


@dataclass(frozen=True)
class Content:
    """The page."""

    title: str
    version: str
    spread: str
    data: list[DataView]
    rows: list[RowView]
    runs: list[RunView]
    grids: list[Sweep]
    rho: list[Sweep]
    curvature: list[Curvature]
    surfaces: list[Surface]
    figures: list[FigureView]
    environments: list[dict[str, Any]]
    images: list[str]
    notes: list[str]


def gather(out: Path, *, title: str, spread: Spread = "stderr", images: bool = True) -> Content:
    """Read the runs in a folder; `notes` names what cannot be read."""
    all_runs, notes = results.read(out)
    without = sum(1 for _ in out.glob("*/run.json")) - len(all_runs) - len(notes)
    if without:
        notes.append(f"{without} {'run has' if without == 1 else 'runs have'} no unseen domain, not shown")
    notes += [*results.changed_data(all_runs), *results.mixed_circumstances(all_runs)]
    table = rows(all_runs, spread=spread)
    order = {result.path: place for place, result in enumerate(all_runs)}
    opened = _open(all_runs) if images else {}
    notes += [f"images of {name} are left out: {why}" for name, why in opened.items() if isinstance(why, str)]
    thumbnails = Thumbnails()
    ranks = rank_averages(table)
    views = [
        RowView(
            row.key.data,
            row.key.label.replace("optimizer_settings.", ""),
            row.key.method,
            row.key.optimizer,
            row.key.averaging,
            row.key.variant.replace("optimizer_settings.", ""),
            [Cell(full(c.mean), full(c.spread), c.runs, c.missing) for c in row.cells.values()],
            full(ranks.get(row.key)),
            [order[result.path] for result in row.results],
        )
        for row in table
    ]
    data = [
        _data(name, list(next(row for row in table if row.key.data == name).cells)[:-1], all_runs, opened, thumbnails)
        for name in dict.fromkeys(row.key.data for row in table)
    ]
    environments: list[dict[str, Any]] = []
    detailed = _detailed(views, all_runs)
    runs = [
        _run(result, environments, opened, thumbnails if place in detailed else None, notes)
        for place, result in enumerate(all_runs)
    ]
    if len(detailed) < sum(result.accuracy is not None for result in all_runs):
        notes.append(f"confusion matrices and mistakes are shown for {len(detailed)} runs, best rows first")
    firsts = [(row.key, row.results[0].recipe) for row in table]
    places = list(enumerate(result.path for result in all_runs))
    curvature = [c for n, p in places if (c := _tried(notes, p, read_curvature, p, n))]
    surfaces = [s for n, p in places if (s := _tried(notes, p, read_surface, p, n))]
    if len(surfaces) > SURFACES:
        notes.append(f"{SURFACES} of {len(surfaces)} loss surfaces are shown")
    grids, rho = (sweeps(firsts, swept) for swept in (("alpha", "beta"), ("rho",)))
    own = {"figure4": (surfaces, "landscape"), "figureIa": (rho, "settings"), "figureIb": (grids, "settings")}
    sections = {name: section for name, (shown, section) in own.items() if shown}
    return Content(
        title,
        __version__,
        CAPTIONS[spread],
        data,
        views,
        runs,
        grids,
        rho,
        curvature,
        surfaces[:SURFACES],
        figures(out, all_runs, sections, notes) if all_runs else [],
        environments,
        thumbnails.images,
        notes,
    )


def _open(all_runs: Sequence[Result]) -> dict[str, DomainSet | str]:
    """Return the data sets by their names in recipes; the reason for those that cannot be opened."""
    opened: dict[str, DomainSet | str] = {}
    for name, result in {result.recipe.data: result for result in all_runs}.items():
        try:
            opened[name] = reopen(result.path, result.recipe)
        except (ValueError, OSError) as error:
            opened[name] = str(error)
    return opened


def _data(
    name: str,
    targets: list[str],
    all_runs: Sequence[Result],
    opened: Mapping[str, DomainSet | str],
    thumbnails: Thumbnails,
) -> DataView:
    path = next(result.recipe.data for result in all_runs if result.data == name)
    data = opened.get(path, "left out on request")
    if isinstance(data, str):
        return DataView(name, targets, [], data)
    return DataView(name, targets, samples(data, thumbnails), None)


def _detailed(views: Sequence[RowView], all_runs: Sequence[Result]) -> set[int]:
    """Return the runs to show in full: the first seed of every row before the second, best rows first."""
    best = sorted(views, key=lambda view: -(view.cells[-1].mean or 0))
    ranked = [(all_runs[run].recipe.seed, position, run) for position, view in enumerate(best) for run in view.runs]
    finished = [run for _, _, run in sorted(ranked) if all_runs[run].accuracy is not None]
    return set(finished[:DETAILED])


def _run(
    result: Result,
    environments: list[dict[str, Any]],
    opened: Mapping[str, DomainSet | str],
    thumbnails: Thumbnails | None,
    notes: list[str],
) -> RunView:
    folder = RunFolder(result.path)
    outcome = folder.read_result() if result.accuracy is not None else {}
    stored = folder.read_run().get("environment")
    environment = stored if isinstance(stored, dict) else {}
    if environment not in environments:
        environments.append(environment)
    data = opened.get(result.recipe.data)
    same = data if not isinstance(data, str) and data is not None and data.fingerprint == outcome.get("data") else None
    return RunView(
        folder.path.name,
        result.target,
        result.recipe.seed,
        full(result.accuracy),
        full(result.validation),
        outcome.get("selected_step"),
        _tried(notes, result.path, command, result.recipe) or "",
        toml(result.recipe),
        environments.index(environment),
        outcome.get("data"),
        _tried(notes, result.path, lambda: curve(folder.read_records(), result.target)),
        _tried(notes, result.path, schedule, result.recipe),
        None if thumbnails is None else _tried(notes, result.path, predictions, folder, same, thumbnails),
    )


def _tried(notes: list[str], path: Path, read: Callable[..., T], *args: Any) -> T | None:
    """Return what `read` returns; None and a note if it fails."""
    try:
        return read(*args)
    except (RunError, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        where = "" if str(path) in str(error) else f"{path}: "
        notes.append(f"{where}{error}; it is left out")
        return None
