"""A self-contained HTML page on an evaluation: its tables, and the wrong images behind each confusion."""

from __future__ import annotations

import heapq
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from mecam import __version__
from mecam.serving.evaluation import PAIRS, WHOLE, Evaluation
from mecam.serving.labelled import Labelled

LISTED = 100  # wrong images listed per confusion, the most confident first
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
a { color: inherit; } img { vertical-align: middle; }
:target { outline: 3px solid var(--wrong); outline-offset: 0.4rem; }
pre { white-space: pre-wrap; border: 1px solid var(--line); padding: 0.7rem; }
footer { margin-top: 3rem; opacity: 0.7; }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


class Mistakes:
    """The wrong images of each confusion: all counted, the most confident ones kept."""

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = classes
        self.counts: dict[tuple[int, int], int] = defaultdict(int)
        self._kept: dict[tuple[int, int], list[tuple[float, int, str, Labelled]]] = defaultdict(list)

    def add(self, one: Labelled, predicted: int, confidence: float) -> None:
        """Count a wrong image."""
        pair = one.label, predicted
        self.counts[pair] += 1
        entry = confidence, -self.counts[pair], str(one.image), one
        kept = self._kept[pair]
        (heapq.heappush if len(kept) < LISTED else heapq.heappushpop)(kept, entry)

    def kept(self, pair: tuple[int, int]) -> list[tuple[float, Labelled]]:
        """Return confidence and image of those kept, the most confident first."""
        return [(confidence, one) for confidence, *_, one in sorted(self._kept[pair], reverse=True)]


def evaluation_page(evaluation: Evaluation, mistakes: Mistakes, source: Path, file: Path) -> str:
    """Return the page on an evaluation of `source`, to be written to `file`, from which its links lead to images."""
    parts = [table([("", "", ""), *evaluation.facts()], text=(2,))]
    if evaluation.stopped:
        parts.insert(0, f'<p class="note">{escape(evaluation.stopped)}</p>')
    parts += [f'<p class="note">{escape(line[0].upper() + line[1:])}.</p>' for line in evaluation.warnings()]
    if len(evaluation.domains) > 1:
        parts += ["<h2>Domains</h2>", table(evaluation.domain_rows())]
    names = [one.name for one in evaluation.classes]
    parts += ["<h2>Classes</h2>", table(evaluation.class_rows()), '<h2 id="confusion">Confusion</h2>']
    parts.append(confusion(names, evaluation.confusion, mistakes))
    parts += wrong_images(mistakes, lambda one: _link(one.image, file), "mecam evaluate --wrong lists all")
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
            f"<td{' class=text' if place in text else ''}>{escape(value)}</td>" for place, value in enumerate(others, 1)
        )
        cells.append(f'<tr><th scope="row">{escape(first)}</th>{"".join(rest)}</tr>')
    return _scrolled(head if any(head) else (), cells)


def confusion(names: Sequence[str], counts: Sequence[Sequence[int]], mistakes: Mistakes) -> str:
    """Return the confusion matrix, or the most frequent confusions of many classes, linked to their images."""

    def cell(label: int, predicted: int) -> str:
        count, pair = f"{counts[label][predicted]:,}", (label, predicted)
        return f'<a href="#{_anchor(pair)}">{count}</a>' if pair in mistakes.counts else count

    if len(names) > WHOLE:
        pairs = [(label, predicted) for label, row in enumerate(counts) for predicted, n in enumerate(row) if n]
        wrong = sorted((pair for pair in pairs if pair[0] != pair[1]), key=lambda pair: -counts[pair[0]][pair[1]])
        head = ["label", "predicted", "images"]
        rows = [
            f'<tr><th scope="row">{escape(names[label])}</th><td class=text>{escape(names[predicted])}</td>'
            f"<td>{cell(label, predicted)}</td></tr>"
            for label, predicted in wrong[:PAIRS]
        ]
    else:
        head, rows = ["label \\ predicted", *names], []
        for label, row in enumerate(counts):
            total, cells = max(1, sum(row)), []
            for predicted, count in enumerate(row):
                kind = "hit" if predicted == label else "miss"
                shade = f' class={kind} style="--share: {60 * count / total:.0f}%"' if count else ""
                cells.append(f"<td{shade}>{cell(label, predicted)}</td>")
            rows.append(f'<tr><th scope="row">{escape(names[label])}</th>{"".join(cells)}</tr>')
    return _scrolled(head, rows)


def wrong_images(mistakes: Mistakes, show: Callable[[Labelled], str], where: str) -> Iterator[str]:
    """Yield a section per confusion, the most frequent first.

    Args:
        show: the HTML of an image.
        where: which command lists the images that are left out here.
    """
    if mistakes.counts:
        yield "<h2>Wrong images</h2>"
    for pair, count in sorted(mistakes.counts.items(), key=lambda item: (-item[1], item[0])):
        label, predicted = (escape(mistakes.classes[place]) for place in pair)
        lines = [f"<li>{100 * confidence:.1f} %: {show(one)}</li>" for confidence, one in mistakes.kept(pair)]
        more = f"<p>and {count - len(lines):,} more; {escape(where)}</p>" if count > len(lines) else ""
        yield (
            f'<section id="{_anchor(pair)}"><h3>{label}, predicted as {predicted}: {count:,}</h3>'
            f'<ul>{"".join(lines)}</ul>{more}<p><a href="#confusion">back to the confusions</a></p></section>'
        )


def _link(image: Path, file: Path) -> str:
    """Return a link to an image, relative to the page where possible."""
    try:
        address = quote(os.fsencode(Path(os.path.relpath(image, file.parent)).as_posix()))
    except ValueError:  # another drive
        address = image.absolute().as_uri()
    return f'<a href="{escape(address)}">{escape(str(image))}</a>'


def _anchor(pair: tuple[int, int]) -> str:
    return f"confusion-{pair[0]}-{pair[1]}"


def _scrolled(head: Iterable[str], body: Iterable[str]) -> str:
    cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    top = f"<thead><tr>{cells}</tr></thead>" if cells else ""
    return f'<div class="scroll"><table>{top}<tbody>{"".join(body)}</tbody></table></div>'
