"""Draws the plots of benchmarks/results/pacs*.md, and writes their tables and one of the README from the records.

python docs/pictures/pacs.py
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from mecam.benchmark.paper import curvature_beside, published
from mecam.benchmark.records_file import Record, read_records
from mecam.benchmark.results import read
from mecam.benchmark.tables import AVERAGE, Key
from mecam.figures.write import images
from mecam.splits import half_interval

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "benchmarks" / "results"
PAGES = RESULTS / "pacs.md", RESULTS / "pacs_resnet50.md", HERE.parents[1] / "README.md"
Measure = Literal["selected", "second half", "last step"]
Values = dict[tuple[str, int], float]
BOTH: tuple[Measure, Measure] = ("selected", "second half")
COLORS = {"selected": "tab:blue", "second half": "tab:orange"}
RADII = (0.01, 0.1, 0.5)  # three of the paper's five
COMPARED = ("ERM", "SAM", "SAGM", "MeCAM")  # in the paper's figures 3 and 4 and its table 5
TARGETS = ("art_painting", "cartoon", "photo", "sketch")
MECAM = {"rho": 0.1, "alpha": 0.1, "beta": 0.1}
PLAIN = {"method": "erm", "averaging": "none", "virtual": "mixstyle", "virtual_settings": {}, "method_settings": {}}
LATE = "MeCAM, last 35 % of steps"
ROWS: dict[str, dict[str, Any]] = {
    "ERM": {"optimizer": "adam"},
    "SAM": {"optimizer": "sam"},
    "SAGM": {"optimizer": "sagm"},
    "MeCAM": {"optimizer": "mecam", "optimizer_settings": MECAM},
    "FAD": {"optimizer": "fad"},
    "CR-SAM": {"optimizer": "crsam"},
    "F-SAM": {"optimizer": "fsam"},
    "GAM": {"optimizer": "gam"},
    "ERM + MixStyle": {"optimizer": "adam", "method": "mixstyle"},
    LATE: {"optimizer": "thinmecam", "optimizer_settings": {**MECAM, "every": 1}},
    "MeCAM without virtual domain": {"optimizer": "mecam", "optimizer_settings": MECAM, "virtual": "none"},
    "MeCAM, rho = 0": {"optimizer": "mecam", "optimizer_settings": {**MECAM, "rho": 0.0}},
    "ERM + SWAD": {"optimizer": "adam", "averaging": "swad"},
    "MeCAM + SWAD": {"optimizer": "mecam", "optimizer_settings": MECAM, "averaging": "swad"},
    "MeCAM + CORAL": {"optimizer": "mecam", "optimizer_settings": MECAM, "method": "coral"},
}
mpl.rcParams["svg.hashsalt"] = "mecam"  # equal figures, equal bytes


class Study(NamedTuple):
    """Runs of one length; longer runs are cut off, which changes nothing where learning rate and rho are constant."""

    name: str
    file: str
    steps: int
    longest: int

    def values(self, row: str, measure: Measure) -> Values:
        """Return the target accuracy in percent by target and seed."""
        if measure != "selected" and ("SWAD" in row or row == LATE):
            return {}  # evaluations are of the weights before averaging; the second half begins with plain steps
        return {place: 100 * accuracy(record, self.steps, measure) for place, record in runs(self, row).items()}

    def seconds(self, row: str) -> float:
        """Return the median time of training, of runs that had a GPU to themselves."""
        found = (each.seconds for each in runs(self, row).values() if self.is_whole(each))
        return statistics.median(each for each in found if each is not None)

    def is_whole(self, record: Record) -> bool:
        return bool(record.recipe["steps"] == self.steps)


RESNET50 = Study("ResNet-50, 5,000 steps", "pacs_resnet50.json", 5000, 5000)
LONG = Study("Lite0, 2,000 steps", "pacs.json", 2000, 2000)
SHORT = Study("Lite0, 1,000 steps", "pacs.json", 1000, 2000)


def runs(study: Study, row: str) -> dict[tuple[str, int], Record]:
    """Return a row's runs by target and seed; one of exactly the study's length replaces a longer one."""
    found = [each for each in records(study.file) if is_of(row, each.recipe)]
    fitting = [each for each in found if study.steps <= each.recipe["steps"] <= study.longest]
    fitting.sort(key=study.is_whole)
    return {(each.recipe["target"], each.recipe["seed"]): each for each in fitting}


@cache
def records(file: str) -> tuple[Record, ...]:
    return tuple(read_records(RESULTS / file).values())


def is_of(row: str, recipe: Mapping[str, Any]) -> bool:
    """Whether a run belongs to a row."""
    settings = {key: value for key, value in recipe["optimizer_settings"].items() if key != "start"}
    wanted = {**PLAIN, "optimizer_settings": settings, **ROWS[row]}
    return all({**recipe, "optimizer_settings": settings}[key] == value for key, value in wanted.items())


def accuracy(record: Record, steps: int, measure: Measure) -> float:
    """Return the accuracy on the target of a run that ends after `steps`."""
    made = [each for each in record.evaluations if each.step <= steps]
    if measure == "selected" and record.recipe["steps"] == steps:
        return float(record.result["target_accuracy"])
    if measure == "selected":
        return max(made, key=lambda each: each.validation or 0.0).target or 0.0
    reached = [each.target or 0.0 for each in made]
    if measure == "second half":
        return statistics.fmean(one for one, each in zip(reached, made, strict=True) if 2 * each.step >= steps)
    return reached[-1]


def gaps(study: Study, row: str, baseline: str, measure: Measure) -> list[float]:
    """Return the differences in the pairs of target and seed that both rows have."""
    ours, theirs = study.values(row, measure), study.values(baseline, measure)
    return [ours[place] - theirs[place] for place in sorted(ours.keys() & theirs.keys())]


def by_seed(study: Study, row: str, baseline: str, measure: Measure) -> list[float]:
    """Return the differences of the averages over targets, a value per seed that has all of them."""
    ours, theirs = study.values(row, measure), study.values(baseline, measure)
    both = {place: ours[place] - theirs[place] for place in ours.keys() & theirs.keys()}
    seeds = [seed for seed in range(3) if all((target, seed) in both for target in TARGETS)]
    return [statistics.fmean(both[target, seed] for target in TARGETS) for seed in seeds]


def papers(row: str, baseline: str) -> float:
    """Return the difference of the paper's averages."""
    names = {"ERM": "methods ERM", "CR-SAM": "optimizers CRSAM", "F-SAM": "optimizers FSAM"}
    names |= {"MeCAM + SWAD": "combinations MeCAM + SWAD"}
    cells = [each for each in published() if (each.data, each.target) == ("PACS", AVERAGE)]
    means = {f"{each.table} {each.algorithm}": each.mean for each in cells}
    one, other = (means[names.get(name, f"optimizers {name}")] for name in (row, baseline))
    return one - other


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return mean, lower and upper end of the 95 % interval; not a number below two values."""
    if len(values) < 2:
        return statistics.fmean(values or [math.nan]), math.nan, math.nan
    mean, half = statistics.fmean(values), half_interval(values)
    return mean, mean - half, mean + half


def interval(values: Sequence[float]) -> str:
    """Return a table's cell: mean [lower, upper]; the mean alone for one value."""
    mean, low, high = mean_interval(values)
    if math.isnan(mean):
        return ""
    return f"{mean:+.1f}" if math.isnan(low) else f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"


def verdict(study: Study, row: str, baseline: str) -> str:
    """Judge a claim by its intervals; one seed decides nothing."""
    found = []
    for measure in BOTH:
        values = gaps(study, row, baseline, measure)
        _, low, high = mean_interval(values)
        seeds = {seed for _, seed in runs(study, row).keys() & runs(study, baseline).keys()}
        decided = "holds" if low > 0 else "does not" if high < 0 else "open"
        found += [decided if len(seeds) > 1 else "open"] * bool(values)
    if len(set(found)) > 1:
        return f"**{found[0]}**; second half: **{found[1]}**"
    return f"**{found[0]}**" if found else "**not run**"


RIVALS = ("FAD", "CR-SAM", "F-SAM", "GAM")
MAIN = [
    *((study, "MeCAM", rival) for rival in ("ERM", "SAM") for study in (RESNET50, LONG)),
    *((study, "MeCAM", "SAGM") for study in (RESNET50, SHORT)),
    (SHORT, "MeCAM + SWAD", "MeCAM"),
]
PLOTTED = [*MAIN, *((SHORT, "MeCAM", rival) for rival in RIVALS), (RESNET50, "SAM", "ERM"), (LONG, "SAM", "ERM")]


def verdicts() -> Iterator[Sequence[str]]:
    """Yield the claims on accuracy; the rivals are one row."""
    yield "claim", "paper", "study, pairs", "selected", "second half", "verdict"
    told: Sequence[str] = ()
    for study, row, baseline in MAIN:
        values = [gaps(study, row, baseline, measure) for measure in BOTH]
        claim = (f"{row} above {baseline}", f"{papers(row, baseline):+.1f}")
        named, told = ("", "") if claim == told else claim, claim
        yield *named, pairs(study, values[0]), *map(interval, values), verdict(study, row, baseline)
    found = [[gaps(SHORT, "MeCAM", rival, measure) for rival in RIVALS] for measure in BOTH]
    columns = (
        [papers("MeCAM", rival) for rival in RIVALS],
        *([statistics.fmean(each) for each in some] for some in found),
    )
    paper, *ours = (f"{min(each):+.1f} to {max(each):+.1f}" for each in columns)
    words = " / ".join(sorted({verdict(SHORT, "MeCAM", rival) for rival in RIVALS}))
    yield f"MeCAM above {', '.join(RIVALS)}", paper, f"{pairs(SHORT, found[0][0])} each", *ours, words


def pairs(study: Study, values: Sequence[float]) -> str:
    return f"{study.name.partition(',')[0]}, {len(values)}"


def selection() -> Iterator[Sequence[str]]:
    """Yield the same runs by three measures of accuracy."""
    measures: tuple[Measure, ...] = ("selected", "last step", "second half")
    yield "study", "difference, over", *measures
    for study, row in ((RESNET50, "ERM"), (LONG, "ERM"), (LONG, "SAM")):
        for over, differences in (("pairs", gaps), ("seeds", by_seed)):
            cells = (interval(differences(study, "MeCAM", row, each)) for each in measures)
            yield "" if over == "seeds" else study.name, f"MeCAM − {row}, {over}", *cells


def spread() -> float:
    """Return the median over runs of the range of the target accuracy over the last six evaluations."""
    found = [runs(LONG, row).values() for row in ("ERM", "SAM", "MeCAM")]
    last = [[100 * (each.target or 0.0) for each in record.evaluations[-6:]] for some in found for record in some]
    return statistics.median(max(each) - min(each) for each in last)


def resnet50() -> Iterator[Sequence[str]]:
    """Yield the accuracies with ResNet-50, a line per row and seed."""
    yield "selected/second half", "seed", *TARGETS, "average"
    for row in ROWS:
        values = [RESNET50.values(row, measure) for measure in BOTH]
        for seed in sorted({seed for _, seed in values[0]}):
            by_measure = [[each.get((target, seed), math.nan) for target in TARGETS] for each in values]
            columns = [*zip(*by_measure, strict=True), tuple(statistics.fmean(each) for each in by_measure)]
            yield row, str(seed), *("/".join("–" if math.isnan(x) else f"{x:.1f}" for x in each) for each in columns)


def complete(study: Study, row: str) -> set[int]:
    """Return the seeds of which all targets were run."""
    places = runs(study, row)
    return {seed for _, seed in places if all((target, seed) in places for target in TARGETS)}


def compared(rows: Sequence[str]) -> dict[str, dict[str, list[Record]]]:
    """Return the runs with ResNet-50 by row and target, of the seeds that all of these rows have."""
    seeds = set.intersection(*(complete(RESNET50, row) for row in rows))
    found = {row: runs(RESNET50, row) for row in rows}
    return {row: {target: [found[row][target, seed] for seed in sorted(seeds)] for target in TARGETS} for row in rows}


def ratios(study: Study, baseline: str) -> list[list[float]]:
    """Return the logarithms of MeCAM's C over the baseline's: for each radius, one value per pair of models."""
    ours, theirs = ({place: c_of(each) for place, each in runs(study, row).items()} for row in ("MeCAM", baseline))
    places = [place for place in sorted(ours.keys() & theirs.keys()) if ours[place] and theirs[place]]
    return [[math.log(ours[place][rho] / theirs[place][rho]) for place in places] for rho in RADII]


def c_of(record: Record) -> dict[float, float]:
    """Return C by radius on training images, empty if it was not measured."""
    found = record.measurements.get("curvature", {}).get("train", {})
    return dict(zip(found.get("rho", ()), found.get("curvature", ()), strict=True))


def curvature() -> Iterator[Sequence[str]]:
    """Yield C of MeCAM over C of another row."""
    yield "MeCAM over", "study, pairs", *(f"rho {rho:g}" for rho in RADII)
    keys = [Key("PACS", "erm", name, "none") for name in ("mecam", "adam", "sam")]
    [of_mecam], [of_erm], [of_sam] = (curvature_beside(key).values() for key in keys)
    for baseline, theirs in (("ERM", of_erm), ("SAM", of_sam)):
        yield baseline, "the paper", *(f"{of_mecam[rho] / theirs[rho]:.2f}" for rho in RADII)
        for study in (RESNET50, SHORT):
            found = ratios(study, baseline)
            ends = [tuple(f"{math.exp(one):.2g}" for one in mean_interval(each)) for each in found]
            cells = [f"{mean} [{low}, {high}]" if low != "nan" else mean for mean, low, high in ends]
            yield baseline, pairs(study, found[0]), *cells


def table5() -> Iterator[Sequence[str]]:
    """Yield the paper's Table 5 with ResNet-50: C, means over targets and the seeds that all rows have."""
    radii = (0.01, 0.05, 0.1, 0.2, 0.5)
    yield "C", "images", *(f"rho {rho:g}" for rho in radii)
    for row, by_target in compared(COMPARED).items():
        for split in ("train", "validation"):
            columns = zip(*(each["curvature"] for each in measured(by_target, split)), strict=True)
            yield row, split, *(_short(statistics.fmean(each)) for each in columns)


def parts_of_c() -> Iterator[Sequence[str]]:
    """Yield what goes into C at rho 0.1, and the largest eigenvalue: means over the same runs."""
    yield "", "‖∇f‖, train", "validation", "numerator, train", "validation", "largest eigenvalue"
    for row, by_target in compared(COMPARED).items():
        curves = [measured(by_target, split) for split in ("train", "validation")]
        lengths = [[each["gradient_norm"] for each in some] for some in curves]
        numerators = [[each["numerator"][2] for each in some] for some in curves]
        all_measurements = [each.measurements.get("eigenvalue", {}) for some in by_target.values() for each in some]
        eigenvalues = [each["largest_eigenvalue"] for each in all_measurements if "largest_eigenvalue" in each]
        yield row, *(_short(statistics.fmean(each)) for each in (*lengths, *numerators, eigenvalues))


def measured(by_target: Mapping[str, Sequence[Record]], split: str) -> list[Mapping[str, Any]]:
    """Return the curvature of runs, as mecam.analysis.curvature stores it."""
    curvatures = [each.measurements.get("curvature", {}) for found in by_target.values() for each in found]
    return [each[split] for each in curvatures if split in each]


def _short(value: float) -> str:
    """Return a number with two digits, without an exponent."""
    return f"{float(f'{value:.2g}'):g}" if value >= 1e-4 else f"{value:.6f}"


def cheaper() -> Iterator[Sequence[str]]:
    """Yield candidates for MeCAM's accuracy in less time."""
    yield "minus MeCAM", "study, pairs", "selected", "second half", "time, in ERM's"
    for row in ("ERM + MixStyle", LATE):
        for study in (RESNET50, SHORT):
            found = [gaps(study, row, "MeCAM", measure) for measure in BOTH]
            if found[0]:
                time = f"{study.seconds(row) / study.seconds('ERM'):.1f}"
                yield row, pairs(study, found[0]), *map(interval, found), time


def summary() -> Iterator[Sequence[str]]:
    """Yield the differences of the README."""
    yield "MeCAM minus", "points", "95 % interval", "pairs", "the paper, ResNet-50"
    for study, baseline in ((LONG, "ERM"), (LONG, "SAM"), (RESNET50, "ERM"), (RESNET50, "SAM")):
        if len(values := gaps(study, "MeCAM", baseline, "selected")) > 1:
            mean, low, high = mean_interval(values)
            cells = f"{mean:+.1f}", f"{low:+.1f} to {high:+.1f}", str(len(values))
            where = f"{baseline}, with {study.name}" if study == RESNET50 else baseline
            yield where, *cells, f"{papers('MeCAM', baseline):+.1f}"


TABLES = {
    each.__name__: each for each in (summary, verdicts, selection, resnet50, curvature, table5, parts_of_c, cheaper)
}


def written(page: str) -> str:
    """Return the page with its tables made anew from the records."""
    for name, rows in TABLES.items():
        heading, *lines = rows()
        rows_of_text = [f"| {' | '.join(cells)} |" for cells in (heading, *lines)]
        text = "\n".join((rows_of_text[0], "|---" * len(heading) + "|", *rows_of_text[1:]))
        opening, closing = f"<!--{name}-->", f"<!--/{name}-->"
        if opening not in page:
            continue
        start, end = page.index(opening) + len(opening), page.index(closing)
        page = f"{page[:start]}\n\n{text}\n\n{page[end:]}"
    return page


def forest(path: Path) -> None:
    """Draw the differences with their 95 % intervals, and the paper's."""
    figure = Figure(figsize=(7.5, 7), layout="constrained")
    axes = figure.add_subplot(xlabel="difference in target accuracy, points", xlim=(-10, 18))
    axes.axvline(0, color="0.6", linewidth=0.8)
    names: list[str] = []
    for study, row, baseline in PLOTTED:
        values = {measure: gaps(study, row, baseline, measure) for measure in BOTH}
        pairs = len(values["selected"])
        if pairs < 2:
            continue
        at, first = len(names), not names
        names.append(f"{row} − {baseline}\n{study.name}, {pairs} pairs")
        for shift, (measure, each) in zip((-0.15, 0.15), values.items(), strict=True):
            if each:
                mean, low, high = mean_interval(each)
                axes.plot([low, high], [at + shift] * 2, color=COLORS[measure], linewidth=1.4)
                axes.plot(mean, at + shift, "o", color=COLORS[measure], markersize=4, label=measure if first else None)
        difference = papers(row, baseline)
        axes.plot(difference, at, "x", color="0.3", label="the paper, ResNet-50" if first else None, linestyle="none")
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.legend(fontsize=8, loc="lower right")
    figure.savefig(path, metadata={"Date": None})


def cost(path: Path) -> None:
    """Draw accuracy against the GPU seconds of a run: by target with ResNet-50, averages with Lite0."""
    figure = Figure(figsize=(7.5, 7.5), layout="constrained")
    upper, lower = figure.subplots(2)
    shown = compared([row for row in ROWS if complete(RESNET50, row)])
    for target in TARGETS:
        points = []
        for row, by_target in shown.items():
            mean = statistics.fmean(100 * accuracy(run, RESNET50.steps, "second half") for run in by_target[target])
            points.append((RESNET50.seconds(row), mean))
        upper.plot(*zip(*sorted(points), strict=True), "o-", markersize=4, label=target)
    for row in shown:
        upper.axvline(RESNET50.seconds(row), color="0.85", zorder=0)
        upper.text(RESNET50.seconds(row), 1.01, row, transform=upper.get_xaxis_transform(), ha="center", fontsize=8)
    upper.set(xlabel=f"GPU seconds of a run ({RESNET50.name})", ylabel="second half: target accuracy, %")
    upper.legend(fontsize=8)
    for row in ("ERM", "ERM + MixStyle", "SAM", "SAGM", "MeCAM", LATE, *RIVALS):
        x, values = SHORT.seconds(row), {measure: SHORT.values(row, measure) for measure in BOTH}
        means = {name: statistics.fmean(each[target, 0] for target in TARGETS) for name, each in values.items() if each}
        lower.plot([x, x], [min(means.values()), max(means.values())], color="0.8", zorder=0)
        for measure, mean in means.items():
            lower.plot(x, mean, "o", color=COLORS[measure], markersize=4, label=measure if row == "ERM" else None)
        aside = {"SAGM": (-6, 4, "right"), "F-SAM": (6, -3, "left"), LATE: (6, -3, "left")}.get(row, (0, 6, "center"))
        top = (x, max(means.values()))
        lower.annotate(row, top, aside[:2], textcoords="offset points", fontsize=8, ha=aside[2])
    lower.margins(y=0.12)
    lower.set(xlabel=f"GPU seconds of a run ({SHORT.name}, seed 0)", ylabel="average over targets, %")
    lower.legend(fontsize=8, loc="lower right")
    figure.savefig(path, metadata={"Date": None})


def papers_figure(name: str, path: Path) -> None:
    """Draw a figure of the paper from the runs with ResNet-50."""
    file = RESULTS / RESNET50.file
    shown = [
        each
        for each in read(file)[0]
        if each.recipe.steps == RESNET50.steps and any(is_of(row, vars(each.recipe)) for row in COMPARED)
    ]
    path.write_bytes(images(name, file, shown, ("svg",))["svg"])


def main(folder: Path = HERE) -> None:
    forest(folder / "pacs_differences.svg")
    cost(folder / "pacs_cost.svg")
    papers_figure("figure3", folder / "pacs_iterations.svg")
    papers_figure("figure4", folder / "pacs_landscapes.svg")


if __name__ == "__main__":
    main()
    for file in PAGES:
        file.write_text(written(file.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"Median range of target accuracy over the last six evaluations: {spread():.1f} points.")
