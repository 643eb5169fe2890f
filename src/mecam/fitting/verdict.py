"""The verdict on a model, from the runs that leave out each domain in turn."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mecam.splits import Part, Split, is_about, mean_interval

TRIED = {"head": "the head on a frozen backbone", "all": "all weights"}
Accuracies = Mapping[str, float]  # by left-out domain, percent


@dataclass(frozen=True, repr=False)
class Verdict:
    """The model in `path`, and its expected accuracy in a domain that is not in the folder. All numbers are percent.

    Each domain is left out in turn. The interval is the 95 % one of the mean over domains (Student's t).
    """

    path: Path
    chosen: str  # "head" or "all": the weights that are trained
    accuracy: float
    low: float
    high: float
    by_domain: dict[str, float]
    by_class: dict[str, float]  # mean over the left-out domains
    majority: float  # the mean share of the most frequent class in a domain
    others: dict[str, float]  # the mean accuracy of what was tried and not chosen
    seconds: float
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        interval = f"{self.low:.1f} to {self.high:.1f} %"
        return f"<Verdict on {self.path}: {self.accuracy:.1f} % expected in a new domain, 95 % interval {interval}>"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def weakest_class(self) -> str:
        return min(self.by_class, key=self.by_class.__getitem__)

    @property
    def balanced(self) -> float:
        return statistics.fmean(self.by_class.values())

    @property
    def weakest_domain(self) -> str:
        return min(self.by_domain, key=self.by_domain.__getitem__)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path), "lines": self.lines()}

    def lines(self) -> list[str]:
        """Return the lines that `mecam fit` prints."""
        domains = ", ".join(f"{name} {value:.1f} %" for name, value in self.by_domain.items())
        mean = statistics.fmean(self.by_domain.values())  # of the choice; the expected accuracy is nested
        lines = [
            f"expected accuracy in a new domain: {self.accuracy:.1f} %, 95 % interval {self.low:.1f} to "
            f"{self.high:.1f} % over {len(self.by_domain)} domains, each left out in turn",
            f"by left-out domain: {domains}",
            f"weakest class: {self.weakest_class}, {self.by_class[self.weakest_class]:.1f} % of its images; "
            f"weakest domain: {self.weakest_domain}",
            f"trained: {TRIED[self.chosen]}",
        ]
        if abs(self.balanced - mean) >= 5:
            lines.insert(1, f"balanced accuracy, the mean over classes: {self.balanced:.1f} %")
        if self.others:
            compared = sorted({**self.others, self.chosen: mean}.items())
            means = ", ".join(f"{TRIED[name]} {value:.1f} %" for name, value in compared)
            lines.append(
                f"tried: {means}; the expected accuracy takes for each domain what is better on the other domains"
            )
        if is_about(self.accuracy / 100, self.majority / 100):
            lines.append(f"always naming a domain's most frequent class would be right in {self.majority:.1f} %")
        return [*lines, *self.notes]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean of these percentages; everything for a single one."""
    return mean_interval(values, 100.0) if len(values) > 1 else (0.0, 100.0)


def accuracy_of(result: Mapping[str, Any]) -> float:
    """Return the accuracy on the unseen domain in the result of a run, in percent."""
    return 100 * float(result["target_accuracy"])


def nested(tried: Mapping[str, Accuracies]) -> dict[str, float]:
    """Return the accuracy on each domain of the training that is best on the other domains; ties go to the first.

    So no domain takes part in the choice that it judges.
    """
    domains = list(next(iter(tried.values())))

    def best_without(domain: str) -> str:
        others = [other for other in domains if other != domain]
        return max(tried, key=lambda name: statistics.fmean(tried[name][other] for other in others))

    return {domain: tried[best_without(domain)][domain] for domain in domains}


def recalls(results: Mapping[str, Mapping[str, Any]], classes: Sequence[str]) -> dict[str, float]:
    """Return the recall of each class, its mean over the left-out domains that have it; `results` by domain."""
    of_class: dict[str, list[float]] = {name: [] for name in classes}
    for domain, result in results.items():
        values = result["splits"][str(Split(domain, Part.TRAINING))]["recall"]
        for name, value in zip(classes, values, strict=True):
            of_class[name] += [] if value is None else [100 * value]
    return {name: statistics.fmean(values) for name, values in of_class.items() if values}
