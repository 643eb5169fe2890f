"""Tables as text: for a terminal, Markdown, LaTeX, CSV, JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence

from mecam.benchmark import paper
from mecam.benchmark.tables import AVERAGE, Cell, Difference, Row, Spread, difference, rank_averages, records

Escape = Callable[[str], str]
CAPTIONS = {"stderr": "standard error over trials (ddof 0)", "std": "standard deviation over trials (ddof 0)"}


def render(
    table: Sequence[Row],
    form: str,
    *,
    spread: Spread = "stderr",
    baseline: str | None = None,
    compare: str | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The table in one of FORMS.

    Args:
        baseline: the label of a row, such as "adam": adds each row's paired difference to it.
        compare: "paper" sets the published cells below ours.
        notes: said below the caption; JSON and CSV have no place for them.
    """
    if form not in FORMS:
        raise ValueError(f"format {form!r} is not known; {', '.join(FORMS)} are")
    if compare not in (None, "paper"):
        raise ValueError(f"there is nothing called {compare!r} to compare with; paper is")
    if form == "json":
        return json.dumps(records(table), indent=2)
    if form == "csv":
        return _csv(table)
    grids = [
        _grid([row for row in table if row.key.data == data], baseline, compare)
        for data in dict.fromkeys(row.key.data for row in table)
    ]
    if len(grids) > 1:
        grids.append(_across(table))
    caption = f"Accuracy on the unseen domain, percent: mean ± {CAPTIONS[spread]}."
    return FORMS[form](grids, " ".join([caption, *notes]))


class Grid:
    """A title, a header and rows of cells; `best` marks those in bold."""

    def __init__(self, title: str, header: list[str], body: list[list[str]], best: set[tuple[int, int]]) -> None:
        self.title, self.header, self.body, self.best = title, header, body, best


def cell_words(cell: Cell) -> str:
    """ "84.1 ± 0.3"; what is missing is said."""
    if cell.mean is None:
        return "–" if not cell.missing else f"– ({cell.missing} missing)"
    spread = "" if cell.spread is None else f" ± {cell.spread:.1f}"
    return f"{cell.mean:.1f}{spread}" + (f" ({cell.missing} missing)" if cell.missing else "")


def difference_words(found: Difference | None) -> str:
    if found is None:
        return "–"
    return f"{found.mean:+.1f} [{found.low:+.1f}, {found.high:+.1f}], n={found.pairs}"


def _grid(rows: Sequence[Row], baseline: str | None, compare: str | None) -> Grid:
    targets = list(rows[0].cells)
    ranks = rank_averages(rows)
    header = ["", *targets, "rank", "runs"]
    against = None
    if baseline is not None:
        against = next((row for row in rows if row.key.label == baseline), None)
        if against is None:
            labels = ", ".join(row.key.label for row in rows)
            raise ValueError(f"there is no row {baseline!r} to compare with; there are {labels}")
        header.append(f"minus {baseline} [95 % CI]")
    body, best = [], set()
    for column, target in enumerate(targets, start=1):
        means = [row.cells[target].mean for row in rows]
        top = max((round(mean, 1) for mean in means if mean is not None), default=None)
        best |= {(number, column) for number, mean in enumerate(means) if mean is not None and round(mean, 1) == top}
    for row in rows:
        rank = f"{ranks[row.key]:.1f}" if row.key in ranks else "–"
        line = [row.key.label, *(cell_words(row.cells[t]) for t in targets), rank, str(row.cells[AVERAGE].runs)]
        body.append([*line, difference_words(difference(row, against))] if against is not None else line)
    if compare == "paper":
        body, best = _with_published(rows, targets, body, best)
    return Grid(rows[0].key.data, header, body, best)


def _with_published(
    rows: Sequence[Row], targets: Sequence[str], body: list[list[str]], best: set[tuple[int, int]]
) -> tuple[list[list[str]], set[tuple[int, int]]]:
    """Below each row the published ones of its algorithm, one a table and source."""
    lines: list[list[str]] = []
    place: dict[int, int] = {}
    for number, (row, line) in enumerate(zip(rows, body, strict=True)):
        place[number] = len(lines)
        lines.append(line)
        cells = {target: paper.beside(row, target) for target in targets}
        origins = dict.fromkeys((c.label, c.algorithm, c.source) for found in cells.values() for c in found)
        for label, algorithm, source in origins:
            words = []
            for target in targets:
                match = [c for c in cells[target] if (c.label, c.algorithm, c.source) == (label, algorithm, source)]
                spread = "" if not match or match[0].spread is None else f" ± {match[0].spread:.1f}"
                words.append(f"{match[0].mean:.1f}{spread}" if match else "")
            lines.append([f"  paper: {algorithm} ({label}, {source})", *words, *[""] * (len(line) - len(words) - 1)])
    return lines, {(place[number], column) for number, column in best}


def _across(table: Sequence[Row]) -> Grid:
    """The averages of all data sets side by side."""
    sets = list(dict.fromkeys(row.key.data for row in table))
    labels = list(dict.fromkeys(row.key.label for row in table))
    found: Mapping[tuple[str, str], Cell] = {(r.key.label, r.key.data): r.cells[AVERAGE] for r in table}
    body = []
    for label in labels:
        cells = [found.get((label, data), Cell(None, None, 0, 0)) for data in sets]
        means = [cell.mean for cell in cells if cell.mean is not None]
        total = f"{sum(means) / len(means):.1f}" if len(means) == len(sets) else "–"
        body.append([label, *map(cell_words, cells), total])
    return Grid("all data sets", ["", *sets, AVERAGE], body, set())


def _csv(table: Sequence[Row]) -> str:
    lines, text = records(table), io.StringIO()
    names = ["data", "target", "method", "optimizer", "averaging", "variant", "mean", "spread", "runs", "missing"]
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue().rstrip("\n")


def _terminal(grids: Sequence[Grid], caption: str) -> str:
    """Plain columns, as wide as they need to be; the best in a column has a star."""
    blocks = [caption]
    for grid in grids:
        marked = [
            [f"{cell}{'*' if (number, column) in grid.best else ''}" for column, cell in enumerate(line)]
            for number, line in enumerate(grid.body)
        ]
        widths = [max(len(line[column]) for line in [grid.header, *marked]) for column in range(len(grid.header))]
        lines = [
            "  ".join(
                cell.ljust(w) if n == 0 else cell.rjust(w) for n, (cell, w) in enumerate(zip(line, widths, strict=True))
            )
            for line in [grid.header, *marked]
        ]
        blocks.append("\n".join([grid.title, *(line.rstrip() for line in lines)]))
    return "\n\n".join(blocks)


def _markdown(grids: Sequence[Grid], caption: str) -> str:
    blocks = [caption]
    for grid in grids:
        lines = [grid.header, ["---", *["---:"] * (len(grid.header) - 1)]]
        for number, line in enumerate(grid.body):
            cells = [cell.replace("|", "\\|") for cell in line]
            lines.append([f"**{c}**" if (number, column) in grid.best else c for column, c in enumerate(cells)])
        blocks.append("\n".join([f"### {grid.title}", "", *(f"| {' | '.join(line)} |" for line in lines)]))
    return "\n\n".join(blocks)


def _latex(grids: Sequence[Grid], caption: str) -> str:
    blocks = [f"% {caption}"]
    for grid in grids:
        rows = []
        for number, line in enumerate([grid.header, *grid.body], start=-1):
            cells = [_tex(cell) for cell in line]
            cells = [f"\\textbf{{{c}}}" if (number, column) in grid.best else c for column, c in enumerate(cells)]
            rows.append(" & ".join(cells) + r" \\")
        layout = "l" + "c" * (len(grid.header) - 1)
        head = [f"% {grid.title}", rf"\begin{{tabular}}{{{layout}}}", r"\toprule", rows[0], r"\midrule"]
        blocks.append("\n".join([*head, *rows[1:], r"\bottomrule", r"\end{tabular}"]))
    return "\n\n".join(blocks)


def _tex(text: str) -> str:
    special = {
        "\\": r"\textbackslash{}",
        "±": r"$\pm$",
        "–": "--",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
    }
    special |= {letter: f"\\{letter}" for letter in "&%$#_{}"}
    return "".join(special.get(letter, letter) for letter in text)


FORMS: Mapping[str, Callable[[Sequence[Grid], str], str]] = {
    "terminal": _terminal,
    "markdown": _markdown,
    "latex": _latex,
    "csv": lambda _grids, _caption: "",
    "json": lambda _grids, _caption: "",
}
