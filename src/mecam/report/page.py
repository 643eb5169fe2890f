"""One HTML file with everything in it: styles, scripts, figures, images. Nothing is fetched when it is read."""

from __future__ import annotations

import base64
import gzip
import html
import json
import math
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from mecam.benchmark.tables import Spread
from mecam.report.content import Content, gather
from mecam.runs import write_atomic

PARTS = ("dom", "charts", "leaderboard", "compare", "sweeps", "surfaces", "figures", "run", "page")  # of the script
TITLE = "Accuracy in domains never seen"


def write(
    out: Path | str,
    file: Path | str,
    *,
    title: str = TITLE,
    spread: Spread = "stderr",
    images: bool = True,
    tell: Callable[[str], None] | None = None,
) -> Path:
    """Write the page on the runs in `out` to `file`.

    Args:
        spread: standard error, standard deviation or 95 % interval over trials.
        images: whether to embed small images of the data, where it is here.
        tell: gets each of the page's notes, such as what is left out.
    """
    out = Path(out)
    if not out.is_dir():
        raise ValueError(f"there is no folder {out}; give the --out of mecam bench")
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    content = gather(out, title=title, spread=spread, images=images)
    write_atomic(file, render(content).encode("utf-8", "replace"))
    if tell is not None:
        for note in content.notes:
            tell(note)
    return file


def render(content: Content) -> str:
    """The page as text."""
    parts = files("mecam.report")
    surfaces = _plotly() if content.surfaces else None
    if content.surfaces and surfaces is None:
        line = "loss surfaces are drawn flat: pip install 'mecam[report]' and write the page again for three dimensions"
        content = replace(content, notes=[*content.notes, line])
    pieces = {
        "title": html.escape(content.title),
        "css": (parts / "page.css").read_text(encoding="utf-8"),
        "js": "\n".join((parts / f"{name}.js").read_text(encoding="utf-8") for name in PARTS),
        "plotly": surfaces or "",
        "content": in_script(vars(content)),
    }
    before, *rest = (parts / "page.html").read_text(encoding="utf-8").split("{{")
    named = (piece.partition("}}") for piece in rest)  # one pass: what is put in is not searched again
    return before + "".join(pieces[name.strip()] + after for name, _, after in named)


def in_script(value: Any) -> str:
    """JSON that can stand inside a <script> element, whatever names are in it."""
    text = json.dumps(value, default=vars, ensure_ascii=False, separators=(",", ":"))
    if "NaN" in text or "Infinity" in text:  # of JSON files made elsewhere; the word alone may be a name
        text = json.dumps(_finite(json.loads(text)), ensure_ascii=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _finite(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _finite(entry) for name, entry in tree.items()}
    if isinstance(tree, list):
        return [_finite(entry) for entry in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def _plotly() -> str | None:
    """plotly.js, compressed; the page unpacks it when a surface is to be drawn."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        return None
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode()
