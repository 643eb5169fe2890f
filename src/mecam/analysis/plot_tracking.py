"""Plot the records of a tracked training: one panel per quantity, over the steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from mecam.analysis._figure import new_figure, save
from mecam.analysis.tracked import Record
from mecam.analysis.tracking import THETA

LINEAR = ("gaps", "cosines of gradients")  # panels of numbers that can be negative


def plot(steps: Sequence[Record], path: Path | str) -> Path:
    """Plot loss, gradient norm, gaps, curvature, ratio and cosines over the steps."""
    figure = new_figure(width=9, height=9)
    step = [r.step for r in steps]
    for place, (title, lines) in zip(figure.subplots(3, 2, sharex=True).flat, panels(steps).items(), strict=True):
        place.set(title=title, yscale="linear" if title in LINEAR else "log")
        for name, values in lines.items():
            place.plot(step, values, label=name, linewidth=1)
        if len(lines) > 1:
            place.legend(fontsize="small")
    figure.supxlabel("step")
    return save(figure, path)


def panels(steps: Sequence[Record]) -> dict[str, dict[str, list[float]]]:
    """Return the curves by panel and name; NaN where a record has no value, and no curve without any."""

    def curves(**values: Callable[[Record], float | None]) -> dict[str, list[float]]:
        columns = {name: [math.nan if (v := value(r)) is None else v for r in steps] for name, value in values.items()}
        return {name: column for name, column in columns.items() if not all(map(math.isnan, column))}

    def cosine(pair: str) -> Callable[[Record], float | None]:
        return lambda r: r.cosines.get(pair)

    pairs = dict.fromkeys(pair for r in steps for pair in r.cosines)
    gaps: dict[str, Callable[[Record], float | None]] = {
        "f(θ+δ) − f": lambda r: r.plus,
        "f(θ−δ) − f": lambda r: None if r.minus_from == "extrapolated" else r.minus,
        "f(θ−δ) − f, extrapolated": lambda r: r.minus if r.minus_from == "extrapolated" else None,
        "m(θ−δ) − f": lambda r: r.meta,
    }
    return {
        "f(θ)": curves(loss=lambda r: r.f),
        "‖∇f‖": curves(norm=lambda r: r.norms.get(THETA)),
        "gaps": curves(**gaps),
        "C": curves(curvature=lambda r: r.curvature),
        "|ratio|": curves(ratio=lambda r: None if r.ratio is None else abs(r.ratio)),
        "cosines of gradients": curves(**{pair: cosine(pair) for pair in pairs}),
    }
