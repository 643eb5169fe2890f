"""Draws pacs_differences.svg of benchmarks/results/pacs.md from the records of the runs, and prints its numbers.

python docs/pictures/pacs.py
"""

import itertools
import statistics
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from mecam.benchmark.experiment import plan_runs
from mecam.benchmark.records_file import Evaluation, Record, read_records
from mecam.benchmark.tables import half_interval

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
Measure = Literal["selected", "second half"]
COLORS: dict[Measure, str] = {"selected": "tab:blue", "second half": "tab:orange"}
NAMES = {"adam": "ERM", "sam": "SAM", "sagm": "SAGM", "mecam": "MeCAM", "fad": "FAD", "crsam": "CR-SAM"}
NAMES |= {"fsam": "F-SAM", "gam": "GAM"}
mpl.rcParams["svg.hashsalt"] = "mecam"  # equal figures, equal bytes


class Study(NamedTuple):
    """Runs of one length; longer runs are cut off, which changes nothing where learning rate and rho are constant."""

    name: str
    recipe: str
    records: str
    steps: int

    def values(self, optimizer: str, measure: Measure) -> dict[tuple[str, int], float]:
        """Return the target accuracy in percent by target and seed."""
        return {
            (record.recipe["target"], record.recipe["seed"]): 100 * accuracy(record.evaluations, self.steps, measure)
            for record in records(self)
            if record.recipe["optimizer"] == optimizer
        }


STUDIES = (
    Study("ResNet-50, 5,000 steps", "pacs_resnet50.toml", "pacs_resnet50.json", 5000),
    Study("Lite0, 2,000 steps", "pacs_main.toml", "pacs.json", 2000),
    Study("Lite0, 1,000 steps", "pacs_main.toml", "pacs.json", 1000),
)
THREE = (("mecam", "adam", 2.8), ("mecam", "sam", 3.0), ("sam", "adam", -0.2))  # and the paper's difference
RIVALS = (("sagm", 1.4), ("fad", 0.1), ("crsam", 2.9), ("fsam", 1.8), ("gam", 2.2))
COMPARISONS = [
    *((STUDIES[0], *three) for three in (*THREE, ("mecam", "sagm", 1.4))),
    *((STUDIES[1], *three) for three in THREE),
    *((STUDIES[2], "mecam", *rival) for rival in RIVALS),
]


@cache
def records(study: Study) -> list[Record]:
    """Return the records of ERM under each optimizer as the recipe has them: longer runs, then those of this length."""
    every = read_records(ROOT / "benchmarks" / "results" / study.records)
    settings: list[list[Any]] = [[], [f"steps={study.steps}"]]
    plans = [plan_runs(ROOT / "recipes" / study.recipe, {}, setting, absent=True) for setting in settings]
    return [
        every[recipe.run_id]
        for recipe in itertools.chain(*plans)
        if recipe.run_id in every
        and (recipe.method, recipe.averaging) == ("erm", "none")
        and (recipe.optimizer != "mecam" or (recipe.virtual != "none" and recipe.optimizer_settings["rho"] > 0))
    ]


def accuracy(evaluations: Sequence[Evaluation], steps: int, measure: Measure) -> float:
    """Return the accuracy on the target of a run that ends after `steps`."""
    made = [each for each in evaluations if each.step <= steps]
    if measure == "second half":
        return statistics.fmean(each.target or 0.0 for each in made if 2 * each.step >= steps)
    return max(made, key=lambda each: each.validation or 0.0).target or 0.0


def differences() -> Iterator[tuple[str, float, dict[Measure, list[float]]]]:
    """Yield what is compared, the paper's difference and ours in each pair of target and seed."""
    for study, row, baseline, paper in COMPARISONS:
        gaps: dict[Measure, list[float]] = {}
        for measure in COLORS:
            ours, theirs = study.values(row, measure), study.values(baseline, measure)
            gaps[measure] = [ours[place] - theirs[place] for place in sorted(ours.keys() & theirs.keys())]
        pairs = len(gaps["selected"])
        if pairs > 1:
            yield f"{NAMES[row]} − {NAMES[baseline]}\n{study.name}, {pairs} pairs", paper, gaps


def forest(path: Path) -> None:
    """Draw the differences with their 95 % intervals, and the paper's."""
    figure = Figure(figsize=(7.5, 6), layout="constrained")
    axes = figure.add_subplot(xlabel="difference in target accuracy, points", xlim=(-8, 16))
    axes.axvline(0, color="0.6", linewidth=0.8)
    names = []
    for place, (name, paper, gaps) in enumerate(differences()):
        names.append(name)
        for shift, (measure, color) in zip((-0.15, 0.15), COLORS.items(), strict=True):
            mean, half = statistics.fmean(gaps[measure]), half_interval(gaps[measure])
            print(f"{' '.join(name.split())}, {measure}: {mean:+.2f} ({mean - half:+.2f} to {mean + half:+.2f})")
            axes.plot([mean - half, mean + half], [place + shift] * 2, color=color, linewidth=1.4)
            axes.plot(mean, place + shift, "o", color=color, markersize=4, label=None if place else measure)
        axes.plot(paper, place, "x", color="0.3", label=None if place else "the paper, ResNet-50", linestyle="none")
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.legend(fontsize=8, loc="lower right")
    figure.savefig(path, metadata={"Date": None})


def main(folder: Path = HERE) -> None:
    forest(folder / "pacs_differences.svg")


if __name__ == "__main__":
    main()
