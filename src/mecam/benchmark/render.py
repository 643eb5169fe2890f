"""Tables as text: for a terminal, Markdown, LaTeX, CSV, JSON."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mecam.benchmark import departures, paper
from mecam.benchmark.tables import AVERAGE, Cell, Difference, Key, Row, Spread, difference, rank_averages
from mecam.columns import aligned

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
    | {"±": r"$\pm$", "–": "--", "†": r"$\dagger$"}
)
Differences = Mapping[Key, Mapping[str, list[str]]]  # by row and profile: see mecam.benchmark.departures


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
    against = _baselines(table, baseline)
    differing = {row.key: departures.of_row(row) for row in table} if compare else None
    if form == "json":
        return json.dumps(_records(table, against, differing), indent=2)
    if form == "csv":
        return _csv(_records(table, against, differing))
    sets = dict.fromkeys(row.key.data for row in table)
    grids = [_grid([row for row in table if row.key.data == data], baseline, against, differing) for data in sets]
    if len(grids) > 1:
        grids.append(_across(table, differing))
    lines = [f"Accuracy on the unseen domain, percent: mean ± {CAPTIONS[spread]}.", *notes]
    lines += [] if differing is None else _legend(table, differing)
    return _TEXTS[form](grids, " ".join(lines))


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


def difference_words(row: Row, baselines: Mapping[str, Row]) -> str:
    gap = _difference(row, baselines)
    return "–" if gap is None else f"{gap.mean:+.1f} [{gap.low:+.1f}, {gap.high:+.1f}], n={gap.pairs}"


def _baselines(table: Sequence[Row], label: str | None) -> dict[str, Row]:
    """Return the row to take differences to, by data set."""
    baselines = {row.key.data: row for row in table if row.key.label == label}
    if label is not None and not baselines:
        labels = ", ".join(dict.fromkeys(row.key.label for row in table))
        raise ValueError(f"there is no row {label!r} to compare with; there are {labels}")
    return baselines


def _grid(rows: Sequence[Row], baseline: str | None, against: Mapping[str, Row], differing: Differences | None) -> Grid:
    targets, ranks = list(rows[0].cells), rank_averages(rows)
    header = ["", *targets, "rank", "runs"]
    if baseline is not None:
        header.append(f"minus {baseline} [95 % CI]")
    body: list[list[str]] = []
    places = []
    for row in rows:
        places.append(len(body))
        rank = f"{ranks[row.key]:.1f}" if row.key in ranks else "–"
        cells = [cell_words(row.cells[target]) for target in targets]
        line = [_marked(row.key.label, [row], differing), *cells, rank, str(row.cells[AVERAGE].runs)]
        if baseline is not None:
            line.append(difference_words(row, against))
        body.append(line)
        if differing is not None:
            columns = [(row.key.data, target) for target in targets]
            body += _published(row.key, columns, len(header), _elsewhere([row], differing))
    means = [[row.cells[target].mean for row in rows] for target in targets]
    best = {(places[number], column) for column, among in enumerate(means, start=1) for number in _best(among)}
    return Grid(rows[0].key.data, header, body, best)


def _across(table: Sequence[Row], differing: Differences | None) -> Grid:
    """Return the averages of all data sets side by side."""
    sets = list(dict.fromkeys(row.key.data for row in table))
    groups: dict[str, dict[str, Row]] = {}
    for row in table:
        groups.setdefault(row.key.label, {})[row.key.data] = row
    body: list[list[str]] = []
    places, averages = [], []
    for label, by_data in groups.items():
        places.append(len(body))
        cells = [by_data[data].cells[AVERAGE] if data in by_data else Cell(None, None, 0, 0) for data in sets]
        means = [cell.mean for cell in cells]
        total = statistics.fmean(mean for mean in means if mean is not None) if None not in means else None
        averages.append([*means, total])
        rows = list(by_data.values())
        body.append([_marked(label, rows, differing), *map(cell_words, cells), cell_words(Cell(total, None, 0, 0))])
        if differing is not None:
            columns = [(data, AVERAGE) for data in (*sets, paper.ALL)]
            lines = _published(rows[0].key, columns, len(sets) + 2, _elsewhere(rows, differing))
            body += [line for line in lines if sum(map(bool, line[1:])) > 1]  # of tables with several data sets
    by_column = enumerate(zip(*averages, strict=True), start=1)
    best = {(places[number], column) for column, among in by_column for number in _best(among)}
    return Grid("all data sets", ["", *sets, AVERAGE], body, best)


def _published(
    key: Key, columns: Sequence[tuple[str, str]], width: int, elsewhere: Mapping[str, object]
) -> list[list[str]]:
    """Return the published rows of this algorithm, one per table and source; a column is a data set and a target.

    Those of the profiles in `elsewhere` are marked.
    """
    cells = [paper.beside(key, target, data) for data, target in columns]
    lines = []
    for origin in dict.fromkeys(_origin(cell) for column in cells for cell in column):
        matches = [next((cell for cell in column if _origin(cell) == origin), None) for column in cells]
        words = ["" if cell is None else cell_words(Cell(cell.mean, cell.spread, 0, 0)) for cell in matches]
        mark = f" {OTHER}" if any(cell is not None and cell.profile in elsewhere for cell in matches) else ""
        lines.append([f"  paper: {origin}{mark}", *words, *[""] * (width - len(words) - 1)])
    return lines


def _origin(cell: paper.Published) -> str:
    return f"{cell.algorithm} ({cell.label}, {cell.source})"


def _best(means: Sequence[float | None]) -> list[int]:
    """Return the places of the best, to one decimal; none for a single row."""
    if len(means) < 2:
        return []
    rounded = [None if mean is None else round(mean, 1) for mean in means]
    top = max((mean for mean in rounded if mean is not None), default=None)
    return [place for place, mean in enumerate(rounded) if mean is not None and mean == top]


def _marked(label: str, rows: Sequence[Row], differing: Differences | None) -> str:
    """Mark a label whose rows have the settings of no published row."""
    marked = differing is not None and any(departures.fewest(differing[row.key]) for row in rows)
    return f"{label} {OTHER}" if marked else label


def _elsewhere(rows: Sequence[Row], differing: Differences) -> dict[str, list[str]]:
    """Return the profiles that rows differ from although they have the settings of another published row."""
    alike = [differing[row.key] for row in rows if not departures.fewest(differing[row.key])]
    return {profile: words for by_profile in alike for profile, words in by_profile.items() if words}


def _legend(table: Sequence[Row], differing: Differences) -> list[str]:
    ours = departures.legend((row, departures.fewest(differing[row.key])) for row in table)
    theirs = departures.legend((row, words) for row in table for words in _elsewhere([row], differing).values())
    lines = [f"{OTHER}: differs from the published setting: {ours}."] if ours else []
    return [*lines, f"{OTHER} on a published row: its settings differ from ours: {theirs}."] if theirs else lines


def _difference(row: Row, against: Mapping[str, Row]) -> Difference | None:
    return difference(row, against[row.key.data]) if row.key.data in against else None


def _records(table: Sequence[Row], against: Mapping[str, Row], differing: Differences | None) -> list[dict[str, Any]]:
    """Return a record per cell; rank and difference of a row are with its average."""
    ranks, records = rank_averages(table), []
    for row in table:
        for target, cell in row.cells.items():
            whole = target == AVERAGE
            record = {
                "data": row.key.data,
                "target": target,
                **{name: getattr(row.key, name) for name in ("method", "optimizer", "averaging")},
                "variant": _variant(row),
                **vars(cell),
                "rank": ranks.get(row.key) if whole else None,
            }
            if against:
                difference = _difference(row, against) if whole else None
                record["difference"] = None if difference is None else vars(difference)
            if differing is not None:
                differs = differing[row.key]
                record["differs"] = departures.fewest(differs)
                record["published"] = [
                    {"mean": p.mean, "spread": p.spread, "from": _origin(p), "differs": differs[p.profile]}
                    for p in paper.beside(row.key, target)
                ]
            records.append(record)
    return records


def _variant(row: Row) -> str:
    """Return the settings of a row, with a note if its method is a variant."""
    parts = [f"{row.key.method} variant"] if row.key.method_variant else []
    return ", ".join([*parts, *filter(None, [row.key.variant or row.chosen])])


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
    writer.writerows(lines)
    return text.getvalue().rstrip("\n")


def _terminal(grids: Sequence[Grid], caption: str) -> str:
    """Return plain columns, as wide as they need to be; the best in a column has a star."""
    blocks = [caption]
    blocks += ["\n".join([grid.title, *aligned([grid.header, *_marked_body(grid, str, "{}*")])]) for grid in grids]
    if any(grid.best for grid in grids):
        blocks.append(BEST)
    return "\n\n".join(blocks)


def _markdown(grids: Sequence[Grid], caption: str) -> str:
    blocks = [caption]
    for grid in grids:
        lines = [[*map(_cell, grid.header)], ["---", *["---:"] * (len(grid.header) - 1)]]
        lines += _marked_body(grid, _cell, "**{}**")
        blocks.append("\n".join([f"### {_cell(grid.title)}", "", *(f"| {' | '.join(line)} |" for line in lines)]))
    return "\n\n".join(blocks)


def _latex(grids: Sequence[Grid], caption: str) -> str:
    blocks = [f"% {caption}"]
    for grid in grids:
        cells = [[*map(_tex, grid.header)], *_marked_body(grid, _tex, r"\textbf{{{}}}")]
        head, *body = [" & ".join(line) + r" \\" for line in cells]
        layout = "l" + "c" * (len(grid.header) - 1)
        lines = [f"% {grid.title}", rf"\begin{{tabular}}{{{layout}}}", r"\toprule", head, r"\midrule", *body]
        blocks.append("\n".join([*lines, r"\bottomrule", r"\end{tabular}"]))
    return "\n\n".join(blocks)


def _marked_body(grid: Grid, escape: Callable[[str], str], mark: str) -> list[list[str]]:
    """Return the body with its cells escaped, and the best of them marked."""
    return [
        [mark.format(cell) if (number, column) in grid.best else cell for column, cell in enumerate(map(escape, line))]
        for number, line in enumerate(grid.body)
    ]


def _cell(text: str) -> str:
    """Escape a cell of a Markdown table."""
    return text.replace("|", "\\|")


def _tex(text: str) -> str:
    return text.translate(TEX)


_TEXTS: Mapping[str, Callable[[Sequence[Grid], str], str]] = {
    "terminal": _terminal,
    "markdown": _markdown,
    "latex": _latex,
}
FORMS = (*_TEXTS, "csv", "json")
