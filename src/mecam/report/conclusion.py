"""Conclusions from the rows of a data set: which model to use, its expected accuracy and cost, how to train it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mecam.benchmark.tables import AVERAGE, Difference, Key, Row, difference
from mecam.progress import clock
from mecam.report.commands import command
from mecam.runs.timing import read_timing
from mecam.splits import mean_interval

PLAIN = ("erm", "adam", "none")  # the row that costs are relative to, and gains are measured against
Seconds = Mapping[Key, float]  # of a run, by row


@dataclass(frozen=True)
class Conclusion:
    """The lines at the top of the page on a data set."""

    data: str
    lines: list[str]
    command: str  # trains the chosen row on all domains; "" if no row is complete


def seconds_per_run(table: Sequence[Row]) -> dict[Key, float]:
    """Return the median training time of the runs of each row; rows whose runs were not timed are left out."""
    times = {}
    for row in table:
        timed = (read_timing(result.path) for result in row.results if result.accuracy is not None)
        if seconds := [timing.seconds for timing in timed if timing is not None]:
            times[row.key] = statistics.median(seconds)
    return times


def baseline(table: Sequence[Row], seconds: Seconds) -> Row | None:
    """Return the timed row that costs are relative to: plain ERM with Adam, otherwise the cheapest."""
    timed = [row for row in table if row.key in seconds]
    plain = [row for row in timed if is_plain(row) and not is_probe(row)]
    return min(plain or timed, key=lambda row: seconds[row.key], default=None)


def is_probe(row: Row) -> bool:
    """Return whether this is a head on the frozen backbone, by ERM and Adam."""
    return is_plain(row) and all(result.recipe.trainable == "head" for result in row.results)


def is_plain(row: Row) -> bool:
    return (row.key.method, row.key.optimizer, row.key.averaging) == PLAIN


def conclude(table: Sequence[Row], seconds: Seconds) -> Conclusion:
    """Return the conclusions from the rows of one data set."""
    data = table[0].key.data
    averages = {row.key: row.cells[AVERAGE].mean for row in table}
    whole = sorted((row for row in table if averages[row.key] is not None), key=lambda row: -(averages[row.key] or 0))
    if not whole:
        return Conclusion(data, ["No combination has a finished run on every unseen domain yet."], "")
    best, *others = whole
    lines = [_expected(best)]
    if others:
        lines.append(f"It is the best of {len(whole)} combinations by this number, so the number is optimistic.")
        against = [others[0], *(row for row in others[1:] if is_plain(row))]
        lines += [line for row in against if (line := _compared(best, row)) is not None]
    if best.key in seconds:
        lines.append(f"Cost: {clock(seconds[best.key])} per run{_relative(best, table, seconds)}.")
    timed = [row for row in others if row.key in seconds]
    cheaper = [row for row in timed if seconds[row.key] < 0.8 * seconds.get(best.key, 0) and _ties(best, row)]
    if cheaper:
        row = min(cheaper, key=lambda row: seconds[row.key])
        lines.append(f"Cheaper, with an interval that includes 0: {row.key.label}, {clock(seconds[row.key])} per run.")
    recipe = best.results[0].recipe
    selection = "validation" if recipe.selection == "oracle" else recipe.selection
    final = replace(recipe, target=None, seed=min(run.recipe.seed for run in best.results), selection=selection)
    return Conclusion(data, lines, f"{command(final)} --out model")


def _expected(row: Row) -> str:
    """Return the accuracy of a row over the unseen domains, with its interval."""
    means = [cell.mean for target, cell in row.cells.items() if target != AVERAGE and cell.mean is not None]
    accuracy = f"{row.key.label}: {row.cells[AVERAGE].mean:.1f} % on unseen domains"
    if len(means) < 2:
        return f"{accuracy}. One domain was left out; an interval needs two or more."
    low, high = mean_interval(means, 100.0)
    interval = f"95 % interval {low:.1f} to {high:.1f} %"
    return f"{accuracy}, {interval} over {len(means)} domains, each left out in turn."


def _compared(best: Row, row: Row) -> str | None:
    """Return the paired difference to another row."""
    gap = difference(best, row)
    if gap is None:
        return None
    name = f"{row.key.label}{', the probe' if is_probe(row) else ''}"
    tied = ", which includes 0" if _includes_0(gap) else ""
    interval = f"95 % interval {gap.low:+.1f} to {gap.high:+.1f}{tied}"
    return f"Minus {name}: {gap.mean:+.1f} points, {interval} ({gap.pairs} pairs of domain and seed)."


def _ties(best: Row, row: Row) -> bool:
    gap = difference(best, row)
    return gap is not None and _includes_0(gap)


def _includes_0(gap: Difference) -> bool:
    return gap.low <= 0 <= gap.high


def _relative(best: Row, table: Sequence[Row], seconds: Seconds) -> str:
    plain = baseline(table, seconds)
    if plain is None or plain.key == best.key:
        return ""
    times = float(f"{seconds[best.key] / seconds[plain.key]:.2g}")
    return f", {times:g} times {plain.key.label}"
