"""What the optimizers were tried with, from the results of marked tests. Run: make works-with.

A test becomes a row by its mark: `pytest.mark.works_with(framework, tried, packages=[...])`. Tests with the same
framework and description share a row. What a test that passes means can be named by
`record_property("outcome", "refused")`, or by `record_property("counts", '{"equal": 87}')` for many cases in one test;
without either, it passes.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from machine import commit, describe, publish, versions

INTRODUCTION = """# Works with

Check what the optimizers were tried with, in the tests of this repository: frameworks, base optimizers, schedulers and
kinds of model. "Equal" means equal to a loop without the framework: to 1e-9 in float64, or as stated. How to use them:
[The optimizer in your loop](just-the-optimizer.md).
"""


@dataclass
class Row:
    versions: str
    outcomes: Counter[str] = field(default_factory=Counter)

    @property
    def result(self) -> str:
        return ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.outcomes.items()))


def read(file: Path, rows: dict[tuple[str, str], Row]) -> None:
    """Add the marked tests of a JUnit file to the rows."""
    for case in ElementTree.parse(file).iter("testcase"):
        properties = {each.attrib["name"]: each.attrib["value"] for each in case.iter("property")}
        if "framework" not in properties:
            continue
        row = rows.setdefault((properties["framework"], properties["tried"]), Row(properties["versions"]))
        what = outcome(case, properties)
        row.outcomes.update(json.loads(properties["counts"]) if what == "passed" and "counts" in properties else [what])


def outcome(case: ElementTree.Element, properties: dict[str, str]) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "FAILED"
    return "not run" if case.find("skipped") is not None else properties.get("outcome", "passed")


def render(rows: dict[tuple[str, str], Row]) -> list[str]:
    facts = {"machine": describe("cpu"), "versions": versions(), "commit": commit()}
    lines = [
        *INTRODUCTION.splitlines(),
        "",
        "    make works-with",
        "",
        *(f"- {name}: {f}" for name, f in facts.items()),
    ]
    lines += ["", "| framework | what was tried | versions | tests |", "| --- | --- | --- | --- |"]
    for (framework, tried), row in sorted(rows.items(), key=lambda item: item[0][0].lower()):
        lines.append(f"| {framework} | {tried.replace(' |', '')} | {row.versions} | {row.result} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+", help="files of pytest --junitxml")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: dict[tuple[str, str], Row] = {}
    for file in options.results:
        read(file, rows)
    publish(render(rows), options.out)
    if any(row.outcomes["FAILED"] for row in rows.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
