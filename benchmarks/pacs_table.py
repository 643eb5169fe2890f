"""The tables of the study on PACS, from benchmarks/results/pacs.json alone; nothing is trained, torch is not needed.

    python benchmarks/pacs_table.py             # puts them into benchmarks/results/pacs.md, between their markers
    python benchmarks/pacs_table.py --chosen    # says what the search chose, and where the recipes differ from it

Rows are the runs that recipes/pacs_*.toml name; what was not run is said to be missing. Words around the markers stay.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from scipy.stats import t

import pacs_plan
from mecam.benchmark import paper
from mecam.benchmark.tables import AVERAGE, SPREADS, Key
from mecam.recipe import Recipe

DOMAINS = {"PACS": ("art_painting", "cartoon", "photo", "sketch")}
TARGETS = DOMAINS["PACS"]
PAGE = pacs_plan.RESULTS.with_suffix(".md")
MISSING = "not run"
NAMES = {
    "adam": "ERM",
    "sam": "SAM",
    "mecam": "MeCAM",
    "sagm": "SAGM",
    "fad": "FAD",
    "crsam": "CR-SAM",
    "fsam": "F-SAM",
    "gam": "GAM",
    "swad": "SWAD",
    "coral": "CORAL",
    "mixstyle": "MixStyle",
}
SPLITS = {"train": "source training", "validation": "source validation", "target": "unseen target"}
SEEDS = 3  # from which on there is an interval over them
LENGTHS = (100, 200, 300, 500, 1000, 1500, 2000, 3000, 4000, 5000)
Place = tuple[int, str]  # seed and target


def selected(record: Mapping[str, Any]) -> float:
    """Accuracy on the target of the selected weights, percent."""
    return 100.0 * record["target_accuracy"]


def second_half(record: Mapping[str, Any]) -> float:
    """Accuracy on the target, percent, as the mean over the evaluations in the second half of training."""
    history = record["history"]
    return 100.0 * statistics.fmean(entry[3] for entry in history if 2 * entry[0] >= history[-1][0])


@dataclass(frozen=True)
class Row:
    """What differs from run to run in seed and target alone."""

    label: str
    recipe: Recipe  # of one of them
    expected: tuple[Place, ...]
    records: Mapping[Place, Mapping[str, Any]]
    read: Callable[[Mapping[str, Any]], float] = selected

    @property
    def values(self) -> dict[Place, float]:
        return {place: self.read(record) for place, record in self.records.items()}


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % confidence interval by Student's t."""

    mean: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def interval(values: Sequence[float]) -> Interval | None:
    """None without two values."""
    if len(values) < 2:
        return None
    mean = statistics.fmean(values)
    half = float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half, len(values))


def rows(recipes: Sequence[Recipe], records: pacs_plan.Records, label: Callable[[Recipe], str]) -> list[Row]:
    """The rows of these runs, in the order in which they are first named."""
    groups: dict[str, list[Recipe]] = {}
    for recipe in recipes:
        shared = {name: value for name, value in recipe.to_dict().items() if name not in ("seed", "target")}
        groups.setdefault(json.dumps(shared, sort_keys=True), []).append(recipe)
    return [
        Row(
            label(group[0]),
            group[0],
            tuple((recipe.seed, str(recipe.target)) for recipe in group),
            {
                (recipe.seed, str(recipe.target)): record
                for recipe in group
                if (record := pacs_plan.known(recipe, records)) is not None
            },
        )
        for group in groups.values()
    ]


def name_of(recipe: Recipe) -> str:
    """ERM, MeCAM + SWAD, ERM + MixStyle."""
    more = [part for part in (recipe.method, recipe.averaging) if part not in ("erm", "none")]
    return " + ".join(NAMES.get(part, part) for part in (recipe.optimizer, *more))


def differs_from(usual: Recipe) -> Callable[[Recipe], str]:
    """What a recipe has that the usual one has not, in words; the usual one's own name for itself."""

    def label(recipe: Recipe) -> str:
        there, here, words = usual.to_dict(), recipe.to_dict(), []
        for name, value in here.items():
            if name in ("seed", "target") or value == there[name]:
                continue
            if isinstance(value, dict):
                words += [f"{key} {value[key]}" for key in value if value[key] != there[name].get(key)]
            else:
                words.append(f"{name} {value}" if name != "optimizer" else NAMES.get(value, value))
        return ", ".join(words) or name_of(recipe)

    return label


def trials(row: Row) -> dict[int, float]:
    """The mean over the targets of each seed that has all of them."""
    values = row.values
    return {
        seed: statistics.fmean(values[seed, target] for target in TARGETS)
        for seed in sorted({seed for seed, _ in values})
        if all((seed, target) in values for target in TARGETS)
    }


def cell(values: Sequence[float], whole: int | None = None) -> str:
    """Mean and standard error; how many are behind it, where that is not as many as behind the row's average."""
    if not values:
        return MISSING
    spread = f" ± {SPREADS['stderr'](values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}" + (f" ({len(values)})" if whole not in (None, len(values)) else "")


def accuracies(row: Row) -> list[str]:
    """A cell a target, their average, and how many seeds are behind it: those that have all targets."""
    whole = trials(row)
    average = "-" if row.records and not whole else cell(list(whole.values()))
    by_target = [[value for (_, name), value in row.values.items() if name == target] for target in TARGETS]
    return [*(cell(values, len(whole)) for values in by_target), average, str(len(whole))]


def gaps(row: Row, baseline: Row) -> list[float]:
    """Differences over pairs: the same seed, and with it the same splits and batches, on the same target."""
    mine, theirs = row.values, baseline.values
    return [mine[place] - theirs[place] for place in sorted(mine.keys() & theirs.keys())]


def gaps_by_seed(row: Row, baseline: Row) -> list[float]:
    """Differences of the averages over targets."""
    mine, theirs = trials(row), trials(baseline)
    return [mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())]


def paired(found: Sequence[float]) -> str:
    """The mean and its interval; of a single pair the difference alone."""
    return str(interval(found) or (f"{found[0]:+.2f}" if found else MISSING))


def time_in_erm(row: Row, plain: Row) -> str:
    """The time of a run in that of ERM's at the same commit: those were made in one sitting, as many at a time.

    Runs that had to share the device with something else are left out, and those of a commit without ERM.
    """
    ratios = []
    usable = [record for record in plain.records.values() if "disturbed" not in record]
    for record in row.records.values():
        theirs = [erm["seconds"] for erm in usable if erm["commit"] == record["commit"]]
        if theirs and "disturbed" not in record:
            ratios.append(record["seconds"] / statistics.median(theirs))
    return f"{statistics.median(ratios):.2f}" if ratios else "-"


def published(recipe: Recipe, target: str) -> str:
    """The paper's number; the two where its tables differ."""
    key = Key("PACS", recipe.method, recipe.optimizer, recipe.averaging)
    found = dict.fromkeys(f"{entry.mean:.1f}" for entry in paper.beside(key, target))
    return " / ".join(found) or "-"


def main_table(table: Sequence[Row]) -> list[str]:
    """The rows that were run; the names of the others."""
    header = ["", *TARGETS, "average", "seeds", "time, in ERM's", "paper, average"]
    plain = next(row for row in table if row.label == "ERM")
    body = [
        [row.label, *accuracies(row), time_in_erm(row, plain), published(row.recipe, AVERAGE)] for row in run(table)
    ]
    return [
        "Percent on the unseen domain; ± is the standard error over seeds, as DomainBed computes it (ddof 0). "
        "The average is over the seeds that have all four targets, counted beside it; in brackets other counts.",
        *markdown(header, body),
        *not_run(table),
    ]


def run(table: Sequence[Row]) -> list[Row]:
    return [row for row in table if row.records]


def not_run(table: Sequence[Row]) -> list[str]:
    missing = [row.label for row in table if not row.records]
    return ["", f"{MISSING.capitalize()} at this length: {'; '.join(missing)}."] if missing else []


def paper_table(table: Sequence[Row]) -> list[str]:
    body = [[row.label, *(published(row.recipe, target) for target in (*TARGETS, AVERAGE))] for row in table]
    return markdown(["paper, ResNet-50", *TARGETS, "average"], body)


def difference_table(table: Sequence[Row], baselines: Sequence[str]) -> list[str]:
    by_label = {row.label: row for row in table}
    header = [""]
    for name in baselines:
        header += [f"minus {name}, pairs", "pairs", "over seeds"]
    body = []
    for row in run(table):
        cells = [row.label]
        for name in baselines:
            if name == row.label or name not in by_label:
                cells += ["", "", ""]
                continue
            over_pairs, over_seeds = gaps(row, by_label[name]), gaps_by_seed(row, by_label[name])
            by_seed = paired(over_seeds) if len(over_seeds) >= SEEDS else "-"
            cells += [paired(over_pairs), str(len(over_pairs)), by_seed]
        body.append(cells)
    return [
        "Points, and their 95 % interval by Student's t. A pair is a seed and a target that both methods were run on; "
        "pairs of one seed share splits: the interval is rather too narrow. Over seeds: of the averages over targets.",
        *markdown(header, body),
    ]


def settled_table(table: Sequence[Row], baselines: Sequence[str]) -> list[str]:
    """The rows that were run, by their second halves."""
    there = [replace(row, read=second_half) for row in run(table) if row.recipe.averaging == "none"]
    by_label = {row.label: row for row in there}
    header = ["", *TARGETS, "average", "seeds"]
    for name in baselines:
        header += [f"minus {name}, pairs", "pairs"]
    body = []
    for row in there:
        cells = [row.label, *accuracies(row)]
        for name in baselines:
            found = gaps(row, by_label[name]) if name in by_label and name != row.label else []
            cells += [paired(found), str(len(found))] if name != row.label else ["", ""]
        body.append(cells)
    return markdown(header, body) if body else [MISSING]


def search_table(records: pacs_plan.Records, recipes: Sequence[Recipe]) -> list[str]:
    choice = pacs_plan.chosen(records, recipes)
    body = []
    for optimizer, points in pacs_plan.searched(records, recipes).items():
        for point, value in points:
            settings = ", ".join(f"{name} {setting}" for name, setting in point["optimizer_settings"].items())
            mark = "chosen" if choice.get(optimizer) == point else ""
            reached = MISSING if value is None else f"{100 * value:.2f}"
            body.append([NAMES.get(optimizer, optimizer), f"{point['lr']:g}", settings, reached, mark])
    return markdown(["", "lr", "settings", "source validation", ""], body)


def curvature_tables(table: Sequence[Row]) -> list[str]:
    """C on each split, then what else was measured; over the seeds and targets that all methods here have."""
    measured = {
        row.label: {place: record["curvature"] for place, record in row.records.items() if "curvature" in record}
        for row in table
        if row.recipe.optimizer in pacs_plan.CURVED and row.recipe.method == "erm" and row.recipe.averaging == "none"
    }
    there = {label: found for label, found in measured.items() if found}
    if not there:
        return [MISSING]
    places = sorted(set.intersection(*(set(found) for found in there.values())))
    if not places:
        return ["not yet measured on a seed and target that all methods share"]
    radii = there[next(iter(there))][places[0]]["rho"]
    lines = [f"Of {', '.join(f'seed {seed} {target}' for seed, target in places)}."]
    if len(places) > 1:
        lines[0] += f" In brackets in how many of them C is the lowest of the {len(there)} methods."
    for split, words in SPLITS.items():
        body = []
        for label in measured:
            cells = []
            for at in range(len(radii)):
                if label not in there:
                    cells.append(MISSING)
                    continue
                mine = [there[label][place][split]["C"][at] for place in places]
                lowest = sum(
                    min(there, key=lambda other: there[other][place][split]["C"][at]) == label for place in places
                )
                cells.append(f"{statistics.fmean(mine):.2g}" + (f" ({lowest})" if len(places) > 1 else ""))
            body.append([label, *cells])
        lines += ["", f"C on the {words} split:", *markdown(["", *(f"rho {rho:g}" for rho in radii)], body)]
    body = []
    for label in measured:
        if label not in there:
            body.append([label, *[MISSING] * 4])
            continue
        found = [there[label][place] for place in places]
        spectra = [each["spectrum"] for each in found if "spectrum" in each]
        body.append(
            [
                label,
                cell_of([spectrum["eigenvalue"] for spectrum in spectra if "eigenvalue" in spectrum]),
                cell_of([spectrum["trace"] for spectrum in spectra]),
                cell_of([each["train"]["gradient_norm"] for each in found]),
                cell_of([each["train"]["loss"] for each in found]),
            ]
        )
    measurements = [there[label][place] for label in there for place in places]
    images = sorted({each["spectrum"]["images"] for each in measurements if "spectrum" in each})
    lines += ["", f"Eigenvalue of largest magnitude and trace on {'/'.join(map(str, images))} images of the source "]
    lines[-1] += "training split, gradient norm and loss on all of what C is measured on:"
    lines += [*markdown(["", "λ_max", "trace", "‖∇f‖", "f"], body), "", "The paper's C:", *paper_curvature()]
    return [*lines, *more_places(there, places)]


def more_places(measured: Mapping[str, Mapping[Place, Mapping[str, Any]]], shared: Sequence[Place]) -> list[str]:
    """Each measurement of the methods that have more of them than all share."""
    more = {label: found for label, found in measured.items() if len(found) > len(shared)}
    lines = []
    for split, words in SPLITS.items() if more else ():
        body, radii = [], []
        for place in sorted(set().union(*more.values())):
            for label, found in more.items():
                if place not in found:
                    continue
                at, radii = found[place][split], found[place]["rho"]
                spectrum = found[place].get("spectrum", {})
                numbers = [*at["C"], at["gradient_norm"], at["loss"]]
                sizes = [cell_of([spectrum[name]] if name in spectrum else []) for name in ("eigenvalue", "trace")]
                sizes = sizes if split == "train" else []
                body.append([f"seed {place[0]} {place[1]}", label, *(f"{number:.2g}" for number in numbers), *sizes])
        header = ["", "", *(f"rho {rho:g}" for rho in radii), "‖∇f‖", "f"]
        header += ["λ_max", "trace"] if split == "train" else []
        lines += ["", f"C of {', '.join(more)}, run by run, on the {words} split:", *markdown(header, body)]
    return lines


def cell_of(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.3g}" if values else MISSING


def paper_curvature() -> list[str]:
    with (files("mecam") / "published" / "curvature_pacs.csv").open(encoding="utf-8") as file:
        header, *body = csv.reader(file)
    return markdown(["", *(name.replace("_", " ") for name in header[1:])], body)


def selected_until(record: Mapping[str, Any], length: int) -> float | None:
    """The accuracy on the target, percent, at the step that is selected among those up to `length`."""
    return None if record["history"][-1][0] < length else 100.0 * pacs_plan.selected_until(record, length)[3]


def shared_targets(table: Sequence[Row]) -> list[str]:
    """The targets that every row was run on which was run at all."""
    of_rows = [{target for _, target in row.records} for row in run(table)]
    return [target for target in TARGETS if of_rows and all(target in of_row for of_row in of_rows)]


def against_steps(table: Sequence[Row]) -> dict[str, dict[int, list[float]]]:
    """By method and length, the averages over the targets that all have, of each seed that has these."""
    found: dict[str, dict[int, list[float]]] = {}
    targets = shared_targets(table)
    for row in table if targets else ():
        for length in LENGTHS:
            at = {place: selected_until(record, length) for place, record in row.records.items()}
            for seed in sorted({seed for seed, _ in at}):
                values = [at.get((seed, target)) for target in targets]
                known = [value for value in values if value is not None]
                if len(known) == len(targets):
                    found.setdefault(row.label, {}).setdefault(length, []).append(statistics.fmean(known))
    return found


def steps_table(table: Sequence[Row]) -> list[str]:
    found, targets = against_steps(table), shared_targets(table)
    words = "average" if targets == list(TARGETS) else " and ".join(targets) or MISSING
    lengths = [length for length in LENGTHS if length <= table[0].recipe.steps]
    body = [[row.label, *(cell(found.get(row.label, {}).get(length, [])) for length in lengths)] for row in table]
    return markdown([f"{words}, steps up to", *map(str, lengths)], body)


def parts_table(table: Sequence[Row], usual: Row, plain: Row) -> list[str]:
    """Accuracies, the paired difference to the usual row, and the time in that of ERM."""
    minus = f"minus {usual.label}, pairs"
    header = ["", *TARGETS, "average", "seeds", minus, f"second half, {minus}", "pairs", "time, in ERM's"]
    body = []
    for row in run(table):
        found = gaps(row, usual)
        later = gaps(replace(row, read=second_half), replace(usual, read=second_half))
        gap = ["", "", ""] if row.recipe == usual.recipe else [paired(found), paired(later), str(len(found))]
        body.append([row.label, *accuracies(row), *gap, time_in_erm(row, plain)])
    return [*markdown(header, body), *not_run(table)]


def repeats_table(recipes: Sequence[Recipe], records: pacs_plan.Records) -> list[str]:
    """The runs that were made twice, once as part of a longer one: how many at one commit, and the others."""
    equal, compared, across, body = 0, 0, 0, []
    for recipe in recipes:
        alone = records.get(recipe.run_id)
        if alone is None:
            continue
        if (longer := pacs_plan.from_longer(recipe, records, alone["commit"])) is not None:
            compared += 1
            equal += longer["history"] == alone["history"]
        elif (longer := pacs_plan.from_longer(recipe, records)) is not None:
            across += longer["history"] == alone["history"]
            cells = [f"{read(record):.1f}" for read in (selected, second_half) for record in (longer, alone)]
            body.append([name_of(recipe), str(recipe.steps), str(recipe.seed), str(recipe.target), *cells])
    columns = (f"{what}, {where}" for what in ("selected", "second half") for where in ("in the longer", "alone"))
    header = ["", "steps", "seed", "target", *columns]
    lines = [f"At one commit: {compared} runs, {equal} of which agree in every digit of every evaluation."]
    if body:
        lines += ["", f"At two commits, {across} of {len(body)} agree in every digit:", *markdown(header, body)]
    return lines


def every_run(table: Sequence[Row]) -> list[str]:
    """Each seed's numbers; rows without any run are left out."""
    body = []
    for row in table:
        for seed in sorted({seed for seed, _ in row.values}):
            cells = [row.values.get((seed, target)) for target in TARGETS]
            steps = [row.records.get((seed, target), {}).get("selected_step") for target in TARGETS]
            words = [MISSING if value is None else f"{value:.2f}" for value in cells]
            body.append([row.label, str(seed), *words, ", ".join("-" if s is None else str(s) for s in steps)])
    return markdown(["", "seed", *TARGETS, "selected steps"], body) if body else [MISSING]


def account(records: pacs_plan.Records, phases: Mapping[str, Sequence[Recipe]]) -> list[str]:
    """How much of each phase was run, where and with what."""
    lines = []
    for phase, recipes in phases.items():
        done = [records[recipe.run_id] for recipe in recipes if recipe.run_id in records]
        minutes = sum(record["seconds"] for record in done) / 60
        line = f"- {pacs_plan.file_of(phase)}: {len(done)} of {len(recipes)} runs, {minutes:.0f} minutes of training"
        held = pacs_plan.held(recipes, records)
        lines.append(line + (f"; {len(held)} more are held by longer runs" if held else ""))
    for name in ("machine", "versions", "commit"):
        seen = Counter(record[name] for record in records.values())
        lines.append(f"- {name}: " + ("; ".join(f"{what} ({count} runs)" for what, count in seen.items()) or "-"))
    return lines


def tables(records: pacs_plan.Records, phases: Mapping[str, Sequence[Recipe]]) -> dict[str, list[str]]:
    """The lines of each table by the name of its marker."""
    main = rows(phases["main"], records, name_of)
    half, long = (rows(phases[phase], records, name_of) for phase in ("half", "long"))
    by_label = {row.label: row for row in main}
    three = [row for row in main if row.label in ("ERM", "SAM", "MeCAM")]
    words = differs_from(replace(by_label["MeCAM"].recipe, steps=phases["parts"][0].steps))
    parts, beyond = (rows(phases[phase], records, words) for phase in ("parts", "beyond"))
    references = {row.label: row for row in parts if row.label in ("ERM", "MeCAM")}  # the main table's, cut off
    usual, plain = references["MeCAM"], references["ERM"]
    own = [row for row in (*parts, *beyond) if row.label not in references]
    return {
        "account": account(records, phases),
        "main": main_table(main),
        "paper": paper_table(main),
        "differences": difference_table(main, ("ERM", "SAM")),
        "half": main_table(half),
        "half differences": difference_table(half, ("ERM", "SAM", "MeCAM")),
        "settled": settled_table(main, ("ERM", "SAM")),
        "settled half": settled_table(half, ("ERM", "SAM", "MeCAM")),
        "settled parts": settled_table([plain, usual, *own], ("ERM", "MeCAM")),
        "search": search_table(records, phases["search"]),
        "curvature": curvature_tables(half),
        "repeats": repeats_table([*phases["search"], *phases["half"], *phases["main"]], records),
        "steps": ["Runs of 5,000 steps:", *steps_table(long), "", "Runs of 2,000 steps:", *steps_table(three)],
        "parts": parts_table(parts, usual, plain),
        "beyond": parts_table(beyond, usual, plain),
        "runs": every_run(
            [*main, *(replace(row, label=f"{row.label}, {row.recipe.steps:,} steps") for row in (*half, *own, *long))]
        ),
    }


def markdown(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *body]
    return ["", *(f"| {' | '.join(line)} |" for line in lines)]


def put(page: str, found: Mapping[str, Sequence[str]]) -> str:
    """The page with each table between its markers; a table without markers goes to the end."""
    for name, lines in found.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        text = "\n".join([begin, "", *"\n".join(lines).strip("\n").split("\n"), "", end])
        if begin in page and end in page:
            page = re.sub(re.escape(begin) + ".*?" + re.escape(end), lambda _, text=text: text, page, flags=re.DOTALL)
        else:
            page = f"{page.rstrip()}\n\n## {name.capitalize()}\n\n{text}\n".lstrip()
    return page


def draw(table: Sequence[Row], path: Path) -> None:
    """Accuracy, averaged over targets, against the length of training."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="steps", ylabel=f"accuracy on {', '.join(shared_targets(table))}, %")
    for label, at in against_steps(table).items():
        axes.plot(list(at), [statistics.fmean(values) for values in at.values()], marker="o", markersize=3, label=label)
    if axes.lines:
        axes.legend()
    figure.savefig(path)


def main() -> None:
    options = parse()
    records = pacs_plan.load(options.results)
    phases = {phase: pacs_plan.planned(phase, DOMAINS) for phase in pacs_plan.PHASES}
    choice = pacs_plan.chosen(records, phases["search"])
    if options.chosen:
        for optimizer, point in choice.items():
            print(f"{optimizer}: {json.dumps(point)}")
    for phase in pacs_plan.TUNED:
        for line in pacs_plan.departures(phases[phase], choice):
            print(f"{pacs_plan.file_of(phase)}: {line}")
    if options.chosen:
        return
    page = options.page.read_text(encoding="utf-8") if options.page.exists() else "# PACS\n"
    options.page.write_text(put(page, tables(records, phases)), encoding="utf-8")
    if options.figure is not None:
        draw(rows(phases["long"], records, name_of), options.figure)
    print(f"{len(records)} runs, tables in {options.page}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=pacs_plan.RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--figure", type=Path, help="accuracy against steps as a figure")
    parser.add_argument("--chosen", action="store_true", help="what the search chose, and nothing else")
    return parser.parse_args()


if __name__ == "__main__":
    main()
