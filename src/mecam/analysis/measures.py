"""Further measures of sharpness by name: columns of `mecam curvature --measure`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from mecam.analysis import spectrum
from mecam.analysis.objective import Objective
from mecam.analysis.operators import EmpiricalFisher, GaussNewton, Hessian
from mecam.progress import Progress, named, silent
from mecam.registry import Registry

SKETCH, DRAWS = 8, 8  # of a trace: 24 products
TOLERANCE = 1e-3  # of an eigenvalue, relative


@dataclass(frozen=True)
class Measure:
    """A measure of a whole objective, with a column for each of its values.

    A measure without `of` belongs to a radius, and `curvature.curvature` takes it.
    """

    name: str
    summary: str
    columns: tuple[str, ...] = ()
    of: Callable[[Objective, Progress], tuple[float, ...]] | None = None


def _trace(kind: type[Hessian | GaussNewton | EmpiricalFisher], f: Objective, progress: Progress) -> tuple[float]:
    return (spectrum.trace(kind(f), draws=DRAWS, sketch=SKETCH, progress=progress).estimate,)


def _both(kind: type[GaussNewton | EmpiricalFisher], f: Objective, progress: Progress) -> tuple[float, float]:
    largest = spectrum.largest(kind(f), tolerance=TOLERANCE, progress=progress).values[0]
    return largest, *_trace(kind, f, progress)


MEASURES: Registry[Measure] = Registry(
    "measure",
    (
        Measure("average", "Mean rise of the loss in random directions, at each rho: plain and adaptive."),
        Measure("trace", "Trace of the Hessian, by Hutch++.", ("tr H",), partial(_trace, Hessian)),
        Measure(
            "gaussnewton",
            "Largest eigenvalue and trace of the Gauss-Newton matrix: for cross-entropy, the Fisher information.",
            ("λ(G)", "tr G"),
            partial(_both, GaussNewton),
        ),
        Measure(
            "fisher",
            "Largest eigenvalue and trace of the empirical Fisher matrix.",
            ("λ(F)", "tr F"),
            partial(_both, EmpiricalFisher),
        ),
    ),
)


def find_all(words: str | Sequence[str]) -> list[Measure]:
    """Return the measures of a comma-separated string or a list; refuse unknown names."""
    names = [word.strip() for word in words.split(",")] if isinstance(words, str) else words
    return [MEASURES.find(name) for name in names]


def further(objective: Objective, measures: Sequence[Measure], progress: Progress = silent) -> dict[str, float]:
    """Return the values of the measures of a whole objective, by column."""
    found: dict[str, float] = {}
    for measure in measures:
        if measure.of is not None:
            values = measure.of(objective, named(progress, measure.name))
            found |= dict(zip(measure.columns, values, strict=True))
    return found
