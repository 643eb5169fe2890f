"""Return the table of a benchmark's folder or records file as text, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mecam.benchmark import results, tables
from mecam.benchmark.render import render
from mecam.recipe import Recipe, RecipeError
from mecam.runs import RunError


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
        (spread, tables.SPREADS, "spread"),
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
    rows = tables.rows(runs, spread=spread, select=select)  # type: ignore[arg-type]
    notes = [results.SECOND_HALF] if accuracy == "second-half" else []
    notes += [*results.changed_data(runs), *(_chosen(row) for row in rows if row.chosen)]
    if any(result.recipe.method in ("arm", "mtl") for result in runs):
        notes.append("Predictions of ARM and MTL depend on the other images of a batch; their order is fixed here.")
    if any(row.key.method_variant for row in rows):
        notes.append("fish variant: Fish itself takes its outer step by SGD without momentum and weight decay.")
    text = render(rows, form, spread=spread, baseline=baseline, compare=compare, notes=notes)  # type: ignore[arg-type]
    return text, [*problems, *results.mixed_circumstances(runs), *(notes if form in ("csv", "json") else [])]


def _chosen(row: tables.Row) -> str:
    """Return the point that a grid search chose, and whether it has beta <= alpha, as the paper's optima do."""
    settings, ordered = row.results[0].recipe.optimizer_settings, ""
    if "alpha" in settings and "beta" in settings:
        ordered = ", beta <= alpha" if settings["beta"] <= settings["alpha"] else ", beta > alpha"
    return f"{row.key.label} on {row.key.data}: {row.chosen} chosen by source validation{ordered}."
