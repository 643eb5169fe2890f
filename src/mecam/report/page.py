"""One self-contained HTML file with styles, scripts, figures and images."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from mecam.progress import Event, Progress, silent
from mecam.report.content import Content, gather
from mecam.report.one_run import one_run_page, only_run
from mecam.runs import RunError, write_atomic
from mecam.runs.find import runs_in

SCRIPTS = (*("dom", "charts", "conclusion", "leaderboard", "compare", "sweeps", "surfaces", "figures", "run", "page"),)
TITLE = "Accuracy in domains never seen"


def write(
    out: Path | str,
    file: Path | str,
    *,
    title: str = TITLE,
    lead: Sequence[str] = (),
    data: Path | str | None = None,
    progress: Progress = silent,
) -> Path:
    """Write the page on the runs in `out` to `file`. A single run, also a stopped one, has a page of its own.

    Args:
        lead: lines for the top of the page, in place of its own conclusions.
        data: the data of the runs. Default: the path in each run, if it was used here before.
        progress: gets a warning per note of the page, such as what is left out.
    """
    out, file = Path(out), Path(file)
    if not out.is_dir():
        raise ValueError(f"there is no folder {out}; give the --out of mecam bench or mecam train")
    if not runs_in(out):
        raise RunError(f"there is no run in {out}; give the --out of mecam bench or mecam train")
    file.parent.mkdir(parents=True, exist_ok=True)
    single = only_run(out)
    if single is not None:
        try:
            page, notes = one_run_page(single, data=data)
        except (LookupError, TypeError, AttributeError, ArithmeticError) as error:  # a file that no training wrote
            what = f"one of its files lacks an expected entry ({type(error).__name__}: {error})"
            raise RunError(f"{single.path} cannot be shown: {what}") from error
    else:
        content = gather(out, title=title, lead=lead, given=data)
        page, notes = render(content), content.notes
    write_atomic(file, page.encode("utf-8", "replace"))
    for note in notes:
        progress(Event(str(file), text=note, kind="warning"))
    return file


def render(content: Content) -> str:
    """Return the page as a string."""
    parts = files("mecam.report")
    surfaces = _plotly() if content.surfaces else None
    if content.surfaces and surfaces is None:
        line = "loss surfaces are drawn flat: pip install 'mecam[report]' and write the page again for three dimensions"
        content = replace(content, notes=[*content.notes, line])
    pieces = {
        "title": html.escape(content.title),
        "css": (parts / "page.css").read_text(encoding="utf-8"),
        "js": "\n".join((parts / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS),
        "plotly": surfaces or "",
        "content": in_script(vars(content)),
    }
    page = (parts / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{ (\w+) \}\}", lambda name: pieces[name[1]], page)  # inserted text is not searched


def in_script(value: Any) -> str:
    """Return JSON that is safe inside a <script> element."""
    text = json.dumps(value, default=vars, ensure_ascii=False, separators=(",", ":"))
    if "NaN" in text or "Infinity" in text:  # from JSON files of others, or part of a name
        finite = json.loads(text, parse_constant=lambda _: None)
        text = json.dumps(finite, ensure_ascii=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _plotly() -> str | None:
    """Return plotly.js, compressed; the page unpacks it to draw a surface."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        return None
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode()
