"""What the page says first: the row to use, its interval, its cost, and the command that trains it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from mecam.recipe import Recipe
from mecam.report.content import Content, gather
from mecam.runs.timing import add_timing
from tests.report.runs import write_run
from tests.report.test_commands import parsed

DOMAINS = ["art", "cartoon", "photo"]
ADAM, SAM = ([0.70, 0.60, 0.90], [0.76, 0.63, 0.99])


def read(out: Path, **options: Any) -> Content:
    return gather(out, title="", **options)


def write_row(out: Path, accuracies: list[float | None], *, seconds: float | None = None, **values: Any) -> None:
    for target, accuracy in zip(DOMAINS, accuracies, strict=True):
        run = write_run(out, accuracy, domains=DOMAINS, target=target, **values)
        if seconds is not None:
            add_timing(run.path, seconds, 10)


def test_the_best_row_with_its_interval_cost_and_command(tmp_path: Path) -> None:
    write_row(tmp_path, ADAM, seconds=60.0)
    write_row(tmp_path, SAM, seconds=150.0, optimizer="sam", optimizer_settings={"rho": 0.1}, selection="oracle")
    [found] = read(tmp_path).conclusions
    half = stats.t.ppf(0.975, 2) * np.std(np.multiply(100, SAM), ddof=1) / np.sqrt(3)
    interval = f"95 % interval {79.3333 - half:.1f} to 100.0 % over 3 domains"
    assert found.lines[0] == f"sam: 79.3 % on unseen domains, {interval}, each left out in turn."
    low, high = stats.ttest_rel(np.multiply(100, SAM), np.multiply(100, ADAM)).confidence_interval(0.95)
    assert low < 0 < high
    paired = f"95 % interval {low:+.1f} to {high:+.1f}, which includes 0 (3 pairs of domain and seed)."
    assert found.lines[1:] == [
        "It is the best of 2 combinations by this number, so the number is optimistic.",
        f"Minus adam: +6.0 points, {paired}",
        "Cost: 2:30 per run, 2.5 times adam.",
        "Cheaper, with an interval that includes 0: adam, 1:00 per run.",
    ]
    assert found.command.endswith(" --out model")
    trained = parsed(found.command)
    assert trained == Recipe(optimizer="sam", optimizer_settings={"rho": 0.1})  # on all domains, without the oracle
    assert "--target" not in shlex.split(found.command)


def test_the_probe_is_named_and_costs_are_relative_to_plain_fine_tuning(tmp_path: Path) -> None:
    write_row(tmp_path, [0.5, 0.4, 0.6], seconds=3.0, trainable="head", backbone="lite0small")
    write_row(tmp_path, ADAM, seconds=60.0, backbone="lite0small")
    write_row(tmp_path, SAM, backbone="lite0small", optimizer="sam")  # not timed
    content = read(tmp_path)
    by_label = {row["label"]: row for row in content.rows}
    assert [row["probe"] for row in content.rows].count(True) == 1
    assert by_label["adam (head)"]["probe"]
    assert by_label["adam (head)"]["cost"] == {"times": 0.05, "of": "adam"}
    assert (by_label["adam"]["seconds"], by_label["adam"]["cost"]) == (60.0, None)
    assert (by_label["sam"]["seconds"], by_label["sam"]["cost"]) == (None, None)
    [found] = content.conclusions
    assert any(line.startswith("Minus adam (head), the probe: +29.3 points") for line in found.lines)
    assert not any(line.startswith("Cost") for line in found.lines)


def test_rows_of_runs_without_a_time_are_not_called_cheaper(tmp_path: Path) -> None:
    write_row(tmp_path, ADAM)
    write_row(tmp_path, SAM, seconds=150.0, optimizer="sam")
    [found] = read(tmp_path).conclusions
    assert found.lines[-1] == "Cost: 2:30 per run."


def test_a_large_factor_has_no_exponent(tmp_path: Path) -> None:
    write_row(tmp_path, ADAM, seconds=1.0)
    write_row(tmp_path, SAM, seconds=123.0, optimizer="sam")
    [found] = read(tmp_path).conclusions
    assert "Cost: 2:03 per run, 120 times adam." in found.lines


def test_incomplete_rows_are_not_chosen(tmp_path: Path) -> None:
    write_row(tmp_path, [0.9, None, 0.9])
    [found] = read(tmp_path).conclusions
    assert found.lines == ["No combination has a finished run on every unseen domain yet."]
    assert found.command == ""
    write_row(tmp_path, ADAM, optimizer="sam")
    [found] = read(tmp_path).conclusions
    assert found.lines[0].startswith("sam: 73.3 %")
    assert len(found.lines) == 1


def test_one_domain_has_no_interval(tmp_path: Path) -> None:
    write_run(tmp_path, 0.5, domains=DOMAINS, target="art")
    [found] = read(tmp_path).conclusions
    assert found.lines[0] == "adam: 50.0 % on unseen domains. One domain was left out; an interval needs two or more."


def test_a_caller_can_say_something_else(tmp_path: Path) -> None:
    write_row(tmp_path, ADAM)
    [found] = read(tmp_path, lead=["expected accuracy: 70 %", "weakest class: dog"]).conclusions
    assert (found.lines, found.command) == (["expected accuracy: 70 %", "weakest class: dog"], "")
