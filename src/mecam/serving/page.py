"""A self-contained HTML page on an evaluation: its tables, and the wrong images behind each confusion."""

from __future__ import annotations

import heapq
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mecam import __version__
from mecam.data.domains import DataError
from mecam.serving.chart import calibration_plot
from mecam.serving.evaluation import PAIRS, WHOLE, Evaluation
from mecam.serving.pictures import pixels_of, thumbnail

LISTED = 100  # wrong images listed per confusion, the most confident first
PICTURES, BYTES = 400, 4_000_000  # embedded in a page
NARROW = 8  # classes whose confusion matrix fits a phone
STYLE = """
:root { color-scheme: light dark; --line: #8886; --wrong: #c0392b; --right: #1e8e5a; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 70rem; padding: 1rem clamp(1rem, 4vw, 3rem) 4rem; overflow-wrap: anywhere;
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.25rem; margin-top: 2.2rem; } h3 { font-size: 1rem; margin-bottom: 0.2rem; }
.scroll { overflow-x: auto; } .note { border-left: 4px solid var(--wrong); padding-left: 0.8rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { text-align: right; padding: 0.3rem 0.7rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td.text { text-align: left; } thead th { vertical-align: bottom; }
.hit { background: color-mix(in srgb, var(--right) var(--share), transparent); }
.miss { background: color-mix(in srgb, var(--wrong) var(--share), transparent); }
a { color: inherit; } img { display: block; width: 64px; height: 64px; object-fit: cover; border-radius: 4px; }
.pictures { list-style: none; padding: 0; display: grid; gap: 0.7rem 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 15rem), 1fr)); }
.pictures li { display: flex; gap: 0.7rem; align-items: center; font-size: 0.85rem; min-width: 0; }
.pictures li > span { min-width: 0; }
.calibration { margin: 0; max-width: 26rem; } .calibration svg { width: 100%; } figcaption { font-size: 0.85rem; }
.calibration text { font-size: 11px; fill: currentColor; } .calibration circle { fill: var(--right); opacity: 0.85; }
.grid { stroke: var(--line); } .diagonal { stroke: currentColor; stroke-dasharray: 4 4; }
.narrow-only { display: none; }
:target { outline: 3px solid var(--wrong); outline-offset: 0.4rem; }
pre { white-space: pre-wrap; border: 1px solid var(--line); padding: 0.7rem; }
footer { margin-top: 3rem; opacity: 0.7; }
@media (max-width: 40rem) {
  .wide-only { display: none; } .narrow-only { display: block; }
  .matrix th, .matrix td { padding: 0.2rem 0.25rem; font-size: 0.8rem; white-space: normal; }
  .matrix thead th:not(:first-child) { writing-mode: vertical-rl; text-align: left; }
  .rows, .rows tbody, .rows th, .rows td { display: block; } .rows thead { display: none; }
  .rows tr { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); padding: 0.4rem 0;
    border-bottom: 1px solid var(--line); }
  .rows th, .rows td { border: 0; padding: 0.1rem 0.5rem 0.1rem 0; text-align: left; white-space: normal;
    overflow-wrap: anywhere; }
  .rows th, .rows td.text { grid-column: 1 / -1; }
  .rows td[data-name]::before { content: attr(data-name); display: block; opacity: 0.7; font-size: 0.8rem; }
}
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


class Mistakes:
    """The wrong images of each confusion: all counted, the most confident ones kept."""

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = classes
        self.counts: dict[tuple[int, int], int] = defaultdict(int)
        self._kept: dict[tuple[int, int], list[tuple[float, int, Any]]] = defaultdict(list)

    def add(self, label: int, predicted: int, confidence: float, image: Any) -> None:
        """Count a wrong image."""
        pair = label, predicted
        self.counts[pair] += 1
        entry = confidence, -self.counts[pair], image  # no two entries of a pair have the same count
        kept = self._kept[pair]
        (heapq.heappush if len(kept) < LISTED else heapq.heappushpop)(kept, entry)

    def kept(self, pair: tuple[int, int]) -> list[tuple[float, Any]]:
        """Return confidence and image of those kept, the most confident first."""
        return [(confidence, image) for confidence, _, image in sorted(self._kept[pair], reverse=True)]


def evaluation_page(evaluation: Evaluation, mistakes: Mistakes, source: Path, file: Path) -> str:
    """Return the page on an evaluation of `source`, to be written to `file`, from which its links lead to images."""
    parts = [table([("", "", ""), *evaluation.facts()], text=(2,))]
    if evaluation.stopped:
        parts.insert(0, f'<p class="note">{escape(evaluation.stopped)}</p>')
    parts += [f'<p class="note">{escape(line[0].upper() + line[1:])}.</p>' for line in evaluation.warnings()]
    if len(evaluation.domains) > 1:
        parts += ["<h2>Domains</h2>", table(evaluation.domain_rows())]
    parts += ["<h2>Calibration</h2>", calibration_plot(evaluation.calibration)]
    parts += ["<h2>Classes</h2>", table(evaluation.class_rows()), '<h2 id="confusion">Confusion</h2>']
    parts.append(confusion(evaluation.confusion, mistakes))
    parts += wrong_images(mistakes, _picture, lambda image: _link(image, file), "mecam evaluate --wrong lists all")
    for title, lines in (("Images that cannot be read", evaluation.unreadable), ("Ignored", evaluation.ignored)):
        if lines:
            parts.append(f"<h2>{title}</h2><ul>{''.join(f'<li>{escape(line)}</li>' for line in lines[:LISTED])}</ul>")
            if len(lines) > LISTED:
                parts.append(f"<p>and {len(lines) - LISTED:,} more</p>")
    return document(f"Evaluation on {source.name or source}", parts)


def document(title: str, parts: Iterable[str]) -> str:
    """Return a page that fetches nothing; `parts` are HTML."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        + "\n".join(parts)
        + f"\n<footer>Written by mecam {escape(__version__)}. Nothing is fetched.</footer>\n</body>\n</html>\n"
    )


def table(rows: Sequence[Sequence[str]], *, text: Sequence[int] = ()) -> str:
    """Return a table; the first row is the head, and the columns in `text` are flush left."""
    head, *body = rows
    cells = []
    for first, *others in body:
        rest = (
            f"<td{' class=text' if place in text else ''}{_named(head[place])}>{escape(value)}</td>"
            for place, value in enumerate(others, 1)
        )
        cells.append(f'<tr><th scope="row">{escape(first)}</th>{"".join(rest)}</tr>')
    return _scrolled(head if any(head) else (), cells)


def confusion(counts: Sequence[Sequence[int]], mistakes: Mistakes) -> str:
    """Return the confusion matrix, or the most frequent confusions of many classes, linked to their images."""
    names = mistakes.classes

    def cell(label: int, predicted: int) -> str:
        count, pair = f"{counts[label][predicted]:,}", (label, predicted)
        return f'<a href="#{_anchor(pair)}">{count}</a>' if pair in mistakes.counts else count

    pairs = [(label, predicted) for label, row in enumerate(counts) for predicted, n in enumerate(row) if n]
    wrong = sorted((pair for pair in pairs if pair[0] != pair[1]), key=lambda pair: -counts[pair[0]][pair[1]])
    listed = [
        f'<tr><th scope="row">{escape(names[label])}</th><td{_named("predicted")}>{escape(names[predicted])}</td>'
        f"<td{_named('images')}>{cell(label, predicted)}</td></tr>"
        for label, predicted in wrong[:PAIRS]
    ]
    frequent = _scrolled(["label", "predicted", "images"], listed)
    if len(names) > WHOLE:
        return frequent
    rows = []
    for label, row in enumerate(counts):
        total, cells = max(1, sum(row)), []
        for predicted, count in enumerate(row):
            kind = "hit" if predicted == label else "miss"
            shade = f' class={kind} style="--share: {60 * count / total:.0f}%"' if count else ""
            cells.append(f"<td{shade}>{cell(label, predicted)}</td>")
        rows.append(f'<tr><th scope="row">{escape(names[label])}</th>{"".join(cells)}</tr>')
    matrix = _scrolled(["label \\ predicted", *names], rows, kind="matrix")
    if len(names) <= NARROW:
        return matrix
    return f'<div class="wide-only">{matrix}</div><div class="narrow-only">{frequent}</div>'


def wrong_images(
    mistakes: Mistakes, picture: Callable[[Any], str | None], name: Callable[[Any], str], where: str
) -> Iterator[str]:
    """Yield a section per confusion, the most frequent first. The most confident mistakes of each have pictures.

    Args:
        picture: the `thumbnail` of an image; None if it is not here.
        name: the HTML of its name.
        where: which command lists the images that are left out here.
    """
    if not mistakes.counts:
        return
    yield "<h2>Wrong images</h2>"
    places = sorted((place, pair) for pair in mistakes.counts for place in range(len(mistakes.kept(pair))))
    pictured, left, shown = set(places[:PICTURES]), BYTES, 0  # the most confident ones of every confusion first
    for pair, count in sorted(mistakes.counts.items(), key=lambda item: (-item[1], item[0])):
        label, predicted = (escape(mistakes.classes[place]) for place in pair)
        lines = []
        for place, (confidence, image) in enumerate(mistakes.kept(pair)):
            small = picture(image) if (place, pair) in pictured and left > 0 else None
            embedded = "" if small is None else f'<img src="data:image/jpeg;base64,{small}" alt="">'
            left, shown = left - len(small or ""), shown + (small is not None)
            lines.append(f"<li>{embedded}<span>{100 * confidence:.1f} %: {name(image)}</span></li>")
        more = f"<p>and {count - len(lines):,} more; {escape(where)}</p>" if count > len(lines) else ""
        yield (
            f'<section id="{_anchor(pair)}"><h3>{label}, predicted as {predicted}: {count:,}</h3>'
            f'<ul class="pictures">{"".join(lines)}</ul>{more}'
            '<p><a href="#confusion">back to the confusions</a></p></section>'
        )
    total = sum(mistakes.counts.values())
    if 0 < shown < total:
        yield f"<p>{shown:,} of {total:,} wrong images have a picture on this page.</p>"


def _picture(image: Path) -> str | None:
    """Return the thumbnail of a file; None if it is gone."""
    try:
        return thumbnail(pixels_of(image))
    except DataError:
        return None


def _link(image: Path, file: Path) -> str:
    """Return a link to an image, relative to the page where possible."""
    try:
        address = quote(os.fsencode(Path(os.path.relpath(image, file.parent)).as_posix()))
    except ValueError:  # another drive
        address = image.absolute().as_uri()
    return f'<a href="{escape(address)}">{escape(str(image))}</a>'


def _anchor(pair: tuple[int, int]) -> str:
    return f"confusion-{pair[0]}-{pair[1]}"


def _named(column: str) -> str:
    """Return the attribute with the name of the column, which a narrow screen shows in each cell."""
    return f' data-name="{escape(column)}"' if column else ""


def _scrolled(head: Iterable[str], body: Iterable[str], kind: str = "rows") -> str:
    cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    top = f"<thead><tr>{cells}</tr></thead>" if cells else ""
    return f'<div class="scroll"><table class="{kind}">{top}<tbody>{"".join(body)}</tbody></table></div>'
