"""The paper's Table 5 from finished runs: C at several radii, with what goes into it.

    table({"mine": Row([curvature(objective)])})     # one model: mecam.analysis.curvature
    rows = grouped(measured)                         # runs: the rows of `mecam table`, over targets and seeds
    table(rows, stars=incomparable(rows) is None)

A cell is the mean over the runs of a row ± their standard deviation (ddof 0).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mecam.analysis.curvature import At, Curvature, Exact, finite
from mecam.benchmark import paper, tables
from mecam.benchmark.results import Result
from mecam.columns import aligned

BLOCKS = {  # entries of At, with their titles; those without any value are left out
    "curvature": "C = |f(θ+δ) + f(θ−δ) − 2 f(θ)| / (‖∇f‖² + 1), δ = rho ∇f/‖∇f‖",
    "numerator": "numerator f(θ+δ) + f(θ−δ) − 2 f(θ), signed",
    "scaled": "C/rho², signed: constant in rho where the loss is quadratic",
    "plus": "f(θ+δ) − f(θ): SAM's sharpness",
    "minus": "f(θ−δ) − f(θ)",
    "meta": "m(θ−δ) − f(θ), on the virtual domain",
    "asam": "ASAM's sharpness",
    "first_order": "first-order sharpness",
    "average": "average sharpness: mean rise in random directions of length rho",
    "adaptive_average": "adaptive average sharpness: mean rise with noise of rho times each weight",
}
METRIC = "curvature"
SPREAD = "Cells are means ± standard deviations over the runs of a row (targets and seeds)."
BEST = "*: the smallest in its column."
PUBLISHED = "paper: Table 5, ResNet-50 on PACS. The paper does not state the split, the targets or the number of runs."


@dataclass(frozen=True)
class Measured:
    """A finished run and its curvature."""

    result: Result
    curvature: Curvature
    exact: Exact | None = None
    further: Mapping[str, float] = field(default_factory=dict)  # by column: mecam.analysis.measures


@dataclass(frozen=True)
class Row:
    """The runs behind a row of the table."""

    runs: Sequence[Curvature]
    exacts: Sequence[Exact] = ()
    results: Sequence[Result] = ()  # where they come from, in the order of `runs`
    key: tables.Key | None = None  # the row of `mecam table` that they belong to
    published: Mapping[str, Mapping[float, float]] = field(default_factory=dict)  # C by algorithm and rho
    further: Sequence[Mapping[str, float]] = ()  # by column, of each run

    @property
    def radii(self) -> list[float]:
        return sorted({at.rho for run in self.runs for at in run.at})

    def spread(self, entry: str, rho: float | None = None) -> Spread:
        """Return the mean and spread of an entry of Curvature, or of At at this rho."""
        among: Iterable[Any] = self.runs if rho is None else (at for run in self.runs for at in run.at if at.rho == rho)
        return spread(getattr(one, entry) for one in among)

    def column(self, name: str) -> Spread:
        """Return the mean and spread of a further measure."""
        return spread(values.get(name) for values in self.further)

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON, a list over rho for each column; a number that is not finite is None."""
        columns = {
            name: {
                "mean": [finite(self.spread(name, rho).mean) for rho in self.radii],
                "std": [self.spread(name, rho).std for rho in self.radii],
            }
            for name in BLOCKS
            if any(getattr(at, name) is not None for run in self.runs for at in run.at)
        }
        exact = {
            "largest_eigenvalue": spread(one.eigenvalue for one in self.exacts).to_dict(),
            "exact": spread(one.curvature for one in self.exacts).to_dict(),
        }
        return {
            **({} if self.key is None else asdict(self.key)),
            "runs": len(self.runs),
            "targets": sorted({result.target for result in self.results} - {""}),
            "seeds": sorted({result.recipe.seed for result in self.results}),
            "loss": self.spread("loss").to_dict(),
            "gradient_norm": self.spread("gradient_norm").to_dict(),
            "rho": self.radii,
            **columns,
            **(exact if self.exacts else {}),
            **{column: self.column(column).to_dict() for column in further_columns([self])},
            "published": {name: [values.get(rho) for rho in self.radii] for name, values in self.published.items()},
        }


@dataclass(frozen=True)
class Spread:
    """A mean and a standard deviation."""

    mean: float | None  # None without values, NaN if one of them is not finite
    std: float | None  # None without a second value

    def __str__(self) -> str:
        return _cell(self.mean) + ("" if self.std is None else f" ± {_cell(self.std)}")

    def to_dict(self) -> dict[str, float | None]:
        return {"mean": finite(self.mean), "std": self.std}


def spread(values: Iterable[float | None]) -> Spread:
    """Return the mean and standard deviation (ddof 0) of the values that are not None."""
    known = [value for value in values if value is not None]
    if not all(map(math.isfinite, known)):
        return Spread(math.nan, None)
    if not known:
        return Spread(None, None)
    return Spread(statistics.fmean(known), statistics.pstdev(known) if len(known) > 1 else None)


def grouped(measured: Sequence[Measured], *, compare: bool = False) -> dict[str, Row]:
    """Return the rows of `mecam table` by label, the data set in front if there are several.

    Args:
        compare: add what the paper's Table 5 has for the row.
    """
    by_path = {one.result.path: one for one in measured}
    rows = _labelled([one.result for one in measured])
    return {label: _row([by_path[run.path] for run in row.results], row.key, compare) for label, row in rows.items()}


def single(measured: Sequence[Measured], *, compare: bool = False) -> dict[str, Row]:
    """Return a row for each run, with the names of `named`."""
    results, by_path = [one.result for one in measured], {one.result.path: one for one in measured}
    keys = {run.path: row.key for row in tables.rows(results) for run in row.results}
    return {name: _row([by_path[run.path]], keys[run.path], compare) for name, run in named(results).items()}


def named(results: Sequence[Result]) -> dict[str, Result]:
    """Return runs by short names: the row of `mecam table`, then target and seed if there are several."""
    targets, seeds = (len({getattr(run.recipe, entry) for run in results}) > 1 for entry in ("target", "seed"))
    names: dict[str, Result] = {}
    for label, row in _labelled(results).items():
        for run in row.results:
            target = [run.recipe.target or "all"] if targets else []
            seed = [f"seed {run.recipe.seed}"] if seeds else []
            name = ", ".join([label, *target, *seed])
            names[f"{name} ({run.path})" if name in names else name] = run
    return names


def incomparable(rows: Mapping[str, Row]) -> str | None:
    """Return a fact in which rows differ, so that their C cannot be ranked; None if there is none."""
    results = [result for row in rows.values() for result in row.results]
    recipes = [result.recipe for result in results]
    facts: dict[str, Sequence[Any]] = {
        "data": [result.fingerprint for result in results],
        "backbone": [(recipe.backbone, recipe.weights, recipe.pretrained) for recipe in recipes],
        "image size": [recipe.image_size for recipe in recipes],
        "holdout": [recipe.holdout for recipe in recipes],
        "sources": [recipe.sources for recipe in recipes],
        "split": [run.data for row in rows.values() for run in row.runs],
        "targets or seeds": [sorted((run.target, run.recipe.seed) for run in row.results) for row in rows.values()],
        "radii": [row.radii for row in rows.values()],
        "number of images": [sorted(run.samples for run in row.runs) for row in rows.values()],
    }
    return next((name for name, values in facts.items() if any(value != values[0] for value in values)), None)


def smallest(rows: Mapping[str, Row]) -> dict[str, set[float]]:
    """Return the radii at which a row has the smallest mean C."""
    means = {name: {rho: finite(row.spread(METRIC, rho).mean) for rho in row.radii} for name, row in rows.items()}
    least: dict[float, float] = {}
    for row in means.values():
        for rho, mean in row.items():
            if mean is not None:
                least[rho] = min(mean, least.get(rho, mean))
    return {name: {rho for rho in row if row[rho] == least.get(rho, math.nan)} for name, row in means.items()}


def table(rows: Mapping[str, Row], *, stars: bool = True) -> str:
    """Return the table as text.

    Args:
        stars: mark the smallest of several means of C in each column.
    """
    if not rows:
        raise ValueError("there is no run to make a table of")
    entries = [e for e in BLOCKS if any(getattr(at, e) is not None for at in _everywhere(rows))]
    starred = smallest(rows) if stars and len(rows) > 1 else {}
    blocks = [_block(rows, entry, starred if entry == METRIC else {}) for entry in entries]
    return "\n\n".join([_facts(rows), *blocks])


def notes(rows: Mapping[str, Row]) -> list[str]:
    """Return the notes below the table."""
    lines = [SPREAD] if any(len(row.runs) > 1 for row in rows.values()) else []
    if len(rows) > 1:
        why = incomparable(rows)
        lines.append(BEST if why is None else f"No row has a star: the rows differ in {why}.")
    if any(row.published for row in rows.values()):
        results = [result for row in rows.values() for result in row.results]
        ours = sorted({f"{result.recipe.backbone} on {result.data}" for result in results})
        lines.append(f"{PUBLISHED} Ours: {', '.join(ours)}, {next(iter(rows.values())).runs[0].data} split.")
    return lines


def _labelled(results: Sequence[Result]) -> dict[str, tables.Row]:
    """Return the rows of `mecam table` by label."""
    rows = tables.rows(results)
    several = len({row.key.data for row in rows}) > 1
    return {f"{row.key.data}: {row.key.label}" if several else row.key.label: row for row in rows}


def _row(measured: Sequence[Measured], key: tables.Key, compare: bool) -> Row:
    return Row(
        [one.curvature for one in measured],
        [one.exact for one in measured if one.exact is not None],
        [one.result for one in measured],
        key,
        paper.curvature_beside(key) if compare else {},
        [one.further for one in measured],
    )


def further_columns(rows: Iterable[Row]) -> list[str]:
    """Return the columns of further measures that the rows have."""
    return list(dict.fromkeys(name for row in rows for values in row.further for name in values))


def _everywhere(rows: Mapping[str, Row]) -> list[At]:
    return [at for row in rows.values() for run in row.runs for at in run.at]


def _facts(rows: Mapping[str, Row]) -> str:
    further = further_columns(rows.values())
    lines = [["", "runs", "f", "‖∇f‖", "largest eigenvalue", "|λ|/(‖∇f‖²+1)", *further, "data", "samples", "dtype"]]
    several = any(len(row.runs) > 1 for row in rows.values())
    for name, row in rows.items():
        first, samples = row.runs[0], sorted({run.samples for run in row.runs})
        numbers = [row.spread("loss"), row.spread("gradient_norm")]
        numbers += [spread(one.eigenvalue for one in row.exacts), spread(one.curvature for one in row.exacts)]
        numbers += [row.column(name) for name in further]
        count, sizes = str(len(row.runs)) if several else "", " to ".join(map(str, samples[:: len(samples) - 1 or 1]))
        lines.append([name, count, *map(str, numbers), first.data, sizes, first.dtype])
    return _aligned(lines)


def _block(rows: Mapping[str, Row], entry: str, starred: Mapping[str, set[float]]) -> str:
    """Return a block of the table; `starred` are the radii at which a row gets a star."""
    radii = sorted({at.rho for at in _everywhere(rows)})
    room = "  " if starred else ""
    lines = [["", *(f"rho={rho:g}{room}" for rho in radii)]]
    for name, row in rows.items():
        marks = {rho: " *" if rho in starred.get(name, ()) else room for rho in radii}
        lines.append([name, *(f"{row.spread(entry, rho)}{mark}" for rho, mark in marks.items())])
        if entry == METRIC:
            for algorithm, values in row.published.items():
                lines.append([f"  paper: {algorithm}", *(_cell(values.get(rho)) + room for rho in radii)])
    return f"{BLOCKS[entry]}\n{_aligned(lines)}"


def _cell(value: float | None) -> str:
    if value is not None and not math.isfinite(value):
        return "not finite"
    return "–" if value is None else f"{value:.3g}" if 0.01 <= abs(value) < 1000 or not value else f"{value:.2e}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return aligned lines, without columns that have no entry."""
    columns = [column for column in zip(*rows, strict=True) if any(cell not in ("", "–") for cell in column[1:])]
    return "\n".join(aligned(list(zip(*columns, strict=True))))
