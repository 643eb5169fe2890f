"""Tables as text: for a terminal, Markdown, LaTeX, CSV, JSON. This needs no torch."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mecam.benchmark import paper, results
from mecam.benchmark.tables import (
    AVERAGE,
    SPREADS,
    Cell,
    Difference,
    Key,
    Row,
    Spread,
    difference,
    is_unbalanced,
    rank_averages,
    rows,
)
from mecam.columns import aligned, as_text, visible
from mecam.recipe import Recipe, RecipeError
from mecam.runs import RunError

CAPTIONS = {
    "stderr": "standard error over trials (ddof 0)",
    "std": "standard deviation over trials (ddof 0)",
    "interval": "95 % confidence interval over trials (Student's t)",
}
BEST = "*: the best of our rows in its column, to one decimal."
OTHER = "†"  # beside a row whose setting is not the one it is compared with
TEX = str.maketrans(
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$", "–": "--", "†": r"$\dagger$", "[": "{[}", "]": "{]}"}  # after a line break, [ starts a length
)
MARKDOWN = str.maketrans({"\\": "\\\\", "&": "&amp;", "<": "&lt;", ">": "&gt;", "`": "\\`", "*": "\\*"})
# departures by row and profile; empty without --compare
Differences = Mapping[Key, Mapping[str, list[str]]]


def table(
    out: Path,
    *,
    form: str = "terminal",
    spread: str = "stderr",
    select: str = "none",
    baseline: str | None = None,
    compare: str | None = None,
    accuracy: str = "selected",
    only: Sequence[Recipe] | None = None,
) -> tuple[str, list[str]]:
    """Return the table of a folder or records file, or of these runs in it, and messages about it."""
    for word, known, option in (
        (spread, SPREADS, "spread"),
        (select, ("none", "shared", "target"), "select"),
        (accuracy, results.ACCURACIES, "accuracy"),
    ):
        if word not in known:
            raise RecipeError(f"there is no {option} {word!r}; there are {', '.join(known)}")
    if not out.exists():
        raise RunError(f"there is no folder {out}, nor a records file; give the --out or --records of mecam bench")
    runs, problems = results.read(out, accuracy=accuracy)  # type: ignore[arg-type]
    if only is not None:
        wanted = {recipe.run_id for recipe in only}
        runs = [result for result in runs if result.path.name in wanted]
    if not runs:
        raise RunError(f"there is no run with a target in {out}" + "".join(f"; {problem}" for problem in problems))
    table = rows(runs, spread=spread, select=select)  # type: ignore[arg-type]
    notes = [results.NOTES[accuracy]] if accuracy in results.NOTES else []
    notes += [*results.changed_data(runs), *(_chosen(row) for row in table if row.chosen)]
    if any(result.recipe.method in ("arm", "mtl") for result in runs):
        notes.append("Predictions of ARM and MTL depend on the other images of a batch; their order is fixed here.")
    if any(row.key.method_variant for row in table):
        notes.append("fish variant: Fish itself takes its outer step by SGD without momentum and weight decay.")
    text = render(table, form, spread=spread, baseline=baseline, compare=compare, notes=notes)  # type: ignore[arg-type]
    problems += [*results.mixed_circumstances(runs), *results.guesses(runs)]
    return text, [*problems, *(notes if form in ("csv", "json") else [])]


def render(
    table: Sequence[Row],
    form: str,
    *,
    spread: Spread = "stderr",
    baseline: str | None = None,
    compare: str | None = None,
    notes: Sequence[str] = (),
) -> str:
    """Return the table in one of FORMS.

    Args:
        baseline: the label of a row, such as "adam": adds each row's paired difference to it.
        compare: "paper" sets the published cells below ours.
        notes: printed with the caption; JSON and CSV have no place for them.
    """
    if form not in FORMS:
        raise ValueError(f"there is no format {form!r}; there are {', '.join(FORMS)}")
    if compare not in (None, "paper"):
        raise ValueError(f"compare={compare!r} is not supported; use 'paper'")
    against = {row.key.data: row for row in table if row.key.label == baseline}
    if baseline is not None and not against:
        labels = ", ".join(dict.fromkeys(row.key.label for row in table))
        raise ValueError(f"there is no row {baseline!r} to compare with; there are {labels}")
    differing = {row.key: paper.departures_of_row(row) for row in table} if compare else {}
    if form in ("json", "csv"):
        records = _records(table, against, differing)
        return json.dumps(records, indent=2) if form == "json" else _csv(records)
    sets = dict.fromkeys(row.key.data for row in table)
    grids = [_of_data([row for row in table if row.key.data == data], baseline, against, differing) for data in sets]
    if len(grids) > 1:
        grids.append(_across(table, differing))
    lines = [f"Accuracy on the unseen domain, percent: mean ± {CAPTIONS[spread]}.", *notes]
    if any(map(is_unbalanced, table)):
        lines.append("Column balanced: the average of the mean accuracy over classes.")
    if ours := paper.legend((row, paper.fewest(differing.get(row.key, {}))) for row in table):
        lines.append(f"{OTHER}: differs from the published setting: {ours}.")
    if theirs := paper.legend((row, each) for row in table for each in _elsewhere([row], differing).values()):
        lines.append(f"{OTHER} on a published row: its settings differ from ours: {theirs}.")
    return _TEXTS[form](grids, " ".join(lines))


def _chosen(row: Row) -> str:
    """Return the point that a grid search chose, and whether it has beta <= alpha, as the paper's optima do."""
    settings, ordered = row.results[0].recipe.optimizer_settings, ""
    if "alpha" in settings and "beta" in settings:
        ordered = ", beta <= alpha" if settings["beta"] <= settings["alpha"] else ", beta > alpha"
    return f"{row.key.label} on {row.key.data}: {row.chosen} chosen by source validation{ordered}."


@dataclass(frozen=True)
class Grid:
    """A title, a header and rows of cells."""

    title: str
    header: list[str]
    body: list[list[str]]
    best: set[tuple[int, int]]  # row and column of the cells in bold


def cell_words(cell: Cell) -> str:
    """Return "84.1 ± 0.3", with the number of missing runs."""
    if cell.mean is None:
        return "–" if not cell.missing else f"– ({cell.missing} missing)"
    spread = "" if cell.spread is None else f" ± {cell.spread:.1f}"
    return f"{cell.mean:.1f}{spread}" + (f" ({cell.missing} missing)" if cell.missing else "")


@dataclass(frozen=True)
class Line:
    """A row of a grid: its cells, further columns, and the published rows below it."""

    label: str
    cells: Sequence[Cell]
    further: Sequence[str] = ()
    below: Sequence[list[str]] = ()


def _grid(title: str, header: Sequence[str], lines: Sequence[Line]) -> Grid:
    body: list[list[str]] = []
    places = []
    for line in lines:
        places.append(len(body))
        body += [[line.label, *map(cell_words, line.cells), *line.further], *line.below]
    means = [[line.cells[column].mean for line in lines] for column in range(len(lines[0].cells))]
    best = {(places[number], column) for column, among in enumerate(means, start=1) for number in _best(among)}
    return Grid(title, ["", *header], body, best)


def _of_data(rows: Sequence[Row], baseline: str | None, against: Mapping[str, Row], differing: Differences) -> Grid:
    """Return the rows of one data set."""
    data, targets, ranks = rows[0].key.data, list(rows[0].cells), rank_averages(rows)
    unbalanced = any(map(is_unbalanced, rows))
    header = [*targets, *(["balanced"] if unbalanced else []), "rank", "runs"]
    header += [] if baseline is None else [f"minus {baseline} [95 % CI]"]
    lines = []
    for row in rows:
        balanced = row.cells[AVERAGE].balanced
        further = ["–" if balanced is None else f"{balanced:.1f}"] if unbalanced else []
        further += [f"{ranks[row.key]:.1f}" if row.key in ranks else "–", str(row.cells[AVERAGE].runs)]
        if baseline is not None:
            gap = _difference(row, against)
            further.append("–" if gap is None else f"{gap.mean:+.1f} [{gap.low:+.1f}, {gap.high:+.1f}], n={gap.pairs}")
        below = _published([row], [(data, target) for target in targets], len(header), differing)
        lines.append(Line(_marked(row.key.label, [row], differing), list(row.cells.values()), further, below))
    return _grid(data, header, lines)


def _across(table: Sequence[Row], differing: Differences) -> Grid:
    """Return the averages of all data sets side by side."""
    sets = list(dict.fromkeys(row.key.data for row in table))
    groups: dict[str, dict[str, Row]] = {}
    for row in table:
        groups.setdefault(row.key.label, {})[row.key.data] = row
    lines = []
    for label, by_data in groups.items():
        rows = list(by_data.values())
        cells = [by_data[data].cells[AVERAGE] if data in by_data else Cell(None, None, 0, 0) for data in sets]
        means = [cell.mean for cell in cells if cell.mean is not None]
        total = Cell(statistics.fmean(means) if len(means) == len(sets) else None, None, 0, 0)
        published = _published(rows, [(data, AVERAGE) for data in (*sets, paper.ALL)], len(sets) + 1, differing)
        below = [line for line in published if sum(map(bool, line[1:])) > 1]  # of tables with several data sets
        lines.append(Line(_marked(label, rows, differing), [*cells, total], below=below))
    return _grid("all data sets", [*sets, AVERAGE], lines)


def _published(
    rows: Sequence[Row], columns: Sequence[tuple[str, str]], width: int, differing: Differences
) -> list[list[str]]:
    """Return the published rows of an algorithm, one per table and source; a column is a data set and a target.

    Those whose settings are not those of our rows are marked.
    """
    if not differing:
        return []
    cells, elsewhere = [paper.beside(rows[0].key, at, data) for data, at in columns], _elsewhere(rows, differing)
    lines = []
    for origin in dict.fromkeys(_origin(cell) for column in cells for cell in column):
        matches = [next((cell for cell in column if _origin(cell) == origin), None) for column in cells]
        words = ["" if cell is None else cell_words(Cell(cell.mean, cell.spread, 0, 0)) for cell in matches]
        mark = f" {OTHER}" if any(cell is not None and cell.profile in elsewhere for cell in matches) else ""
        lines.append([f"  paper: {origin}{mark}", *words, *[""] * (width - len(words))])
    return lines


def _origin(cell: paper.Published) -> str:
    return f"{cell.algorithm} ({cell.label}, {cell.source})"


def _best(means: Sequence[float | None]) -> list[int]:
    """Return the places of the best, to one decimal; none for a single row."""
    if len(means) < 2:
        return []
    rounded = [None if mean is None else round(mean, 1) for mean in means]
    top = max((mean for mean in rounded if mean is not None), default=math.nan)
    return [place for place, mean in enumerate(rounded) if mean == top]


def _marked(label: str, rows: Sequence[Row], differing: Differences) -> str:
    """Mark a label whose rows have the settings of no published row."""
    return f"{label} {OTHER}" if any(paper.fewest(differing.get(row.key, {})) for row in rows) else label


def _elsewhere(rows: Sequence[Row], differing: Differences) -> dict[str, list[str]]:
    """Return the profiles that rows differ from although they have the settings of another published row."""
    alike = (differing.get(row.key, {}) for row in rows)
    return {
        profile: words
        for by_profile in alike
        if not paper.fewest(by_profile)
        for profile, words in by_profile.items()
        if words
    }


def _difference(row: Row, against: Mapping[str, Row]) -> Difference | None:
    return difference(row, against[row.key.data]) if row.key.data in against else None


def _records(table: Sequence[Row], against: Mapping[str, Row], differing: Differences) -> list[dict[str, Any]]:
    """Return a record per cell; rank and difference of a row are with its average."""
    ranks, records = rank_averages(table), []
    for row in table:
        variants = [f"{row.key.method} variant" if row.key.method_variant else "", row.chosen or row.key.variant]
        for target, cell in row.cells.items():
            whole = target == AVERAGE
            record = {
                "data": row.key.data,
                "target": target,
                **{name: getattr(row.key, name) for name in ("method", "optimizer", "averaging")},
                "variant": ", ".join(filter(None, variants)),
                **vars(cell),
                "rank": ranks.get(row.key) if whole else None,
            }
            if against:
                difference = _difference(row, against) if whole else None
                record["difference"] = None if difference is None else vars(difference)
            if differing:
                differs = differing[row.key]
                record["differs"] = paper.fewest(differs)
                record["published"] = [
                    {"mean": p.mean, "spread": p.spread, "from": _origin(p), "differs": differs[p.profile]}
                    for p in paper.beside(row.key, target)
                ]
            records.append(record)
    return records


def _csv(records: Sequence[dict[str, Any]]) -> str:
    """Return a line per cell; published cells follow ours, with their source in `from`."""
    lines = []
    for record in records:
        line = {name: value for name, value in record.items() if name not in ("difference", "differs", "published")}
        if "difference" in record:
            of = record["difference"] or dict.fromkeys(("mean", "low", "high", "pairs"))
            line |= {f"difference {name}": value for name, value in of.items()}
        if "published" in record:
            line |= {"differs": "; ".join(record["differs"]), "from": "ours"}
        lines.append(line)
        place = {name: line[name] for name in ("data", "target", "method", "optimizer", "averaging")}
        published = record.get("published", ())
        lines += [{**place, **other, "differs": "; ".join(other["differs"])} for other in published]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: as_text(value) for name, value in line.items()} for line in lines)
    return text.getvalue().rstrip("\n")


def _terminal(grids: Sequence[Grid], caption: str) -> str:
    """Return plain columns, as wide as they need to be; the best in a column has a star."""
    blocks = [_plain(caption)]
    for grid in grids:
        cells = [[*map(_plain, grid.header)], *_marked_body(grid, _plain, "{}*")]
        blocks.append("\n".join([_plain(grid.title), *aligned(cells)]))
    if any(grid.best for grid in grids):
        blocks.append(BEST)
    return "\n\n".join(blocks)


def _markdown(grids: Sequence[Grid], caption: str) -> str:
    blocks = [_prose(caption)]
    for grid in grids:
        lines = [[*map(_cell, grid.header)], ["---", *["---:"] * (len(grid.header) - 1)]]
        lines += _marked_body(grid, _cell, "**{}**")
        blocks.append("\n".join([f"### {_cell(grid.title)}", "", *(f"| {' | '.join(line)} |" for line in lines)]))
    return "\n\n".join(blocks)


def _latex(grids: Sequence[Grid], caption: str) -> str:
    blocks = [f"% {_plain(caption)}"]
    for grid in grids:
        cells = [[*map(_tex, grid.header)], *_marked_body(grid, _tex, r"\textbf{{{}}}")]
        head, *body = [" & ".join(line) + r" \\" for line in cells]
        layout = "l" + "c" * (len(grid.header) - 1)
        lines = [f"% {_plain(grid.title)}", rf"\begin{{tabular}}{{{layout}}}", r"\toprule", head, r"\midrule", *body]
        blocks.append("\n".join([*lines, r"\bottomrule", r"\end{tabular}"]))
    return "\n\n".join(blocks)


def _marked_body(grid: Grid, escape: Callable[[str], str], mark: str) -> list[list[str]]:
    """Return the body with its cells escaped, and the best of them marked."""
    return [
        [mark.format(cell) if (number, column) in grid.best else cell for column, cell in enumerate(map(escape, line))]
        for number, line in enumerate(grid.body)
    ]


def _plain(text: str) -> str:
    """Return a name on one line, with its control characters shown."""
    return visible(" ".join(text.split("\n")))


def _prose(text: str) -> str:
    """Escape what Markdown would take for HTML, code, emphasis, a link or an image."""
    shown = _plain(text).translate(MARKDOWN).replace("](", "]\\(")
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\_", shown)


def _cell(text: str) -> str:
    """Escape a cell of a Markdown table."""
    return _prose(text).replace("|", "\\|")


def _tex(text: str) -> str:
    return _plain(text).translate(TEX)


_TEXTS: Mapping[str, Callable[[Sequence[Grid], str], str]] = {
    "terminal": _terminal,
    "markdown": _markdown,
    "latex": _latex,
}
FORMS = (*_TEXTS, "csv", "json")
