"""Make the attacks that docs/reliability.md promises to survive, count them, and write a page: `make torture`.

An attack is a test with the mark `attack(clause)`; the clause is the heading of docs/reliability.md that it defends.
Those in tests/torture take minutes and run here only, all others also in `make test`. The exit code is 1 if an attack
broke something. With --update, the page keeps what it says of attacks that are not made this time.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from xml.etree import ElementTree

from machine import heading, publish, table

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"\| (.+) \| (\d+) \| (\d+) \| (\d+) \|")
LONG = sorted(str(file.relative_to(ROOT)) for file in (ROOT / "tests" / "torture").glob("[!_]*.py"))
OUTCOMES = ("survived", "broken", "not made")
Counts = dict[str, dict[str, Counter[str]]]  # by clause and attack


def clauses(page: Path) -> list[str]:
    """Return the headings of the page."""
    return [line[3:] for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("## ")]


def read(file: Path, known: list[str]) -> Counts:
    """Count the outcomes of the attacks in a JUnit file of pytest."""
    found: Counts = {clause: defaultdict(Counter) for clause in known}
    for case in ElementTree.parse(file).iter("testcase"):
        properties = {each.attrib["name"]: each.attrib["value"] for each in case.iter("property")}
        if (clause := properties.get("attack")) is None:
            continue
        if clause not in found:
            raise SystemExit(f"{case.attrib['name']}: docs/reliability.md has no clause {clause!r}")
        name = case.attrib["name"].partition("[")[0].removeprefix("test_").replace("_", " ")
        found[clause][name][_outcome(case)] += 1
    return found


def kept(page: Path, known: list[str]) -> Counts:
    """Return the counts on an earlier page."""
    found: Counts = {clause: defaultdict(Counter) for clause in known}
    clause = ""
    for line in page.read_text(encoding="utf-8").splitlines():
        clause = line.removeprefix("## ") if line.startswith("## ") else clause
        if (row := ROW.fullmatch(line)) and clause in found:
            found[clause][row[1]].update(dict(zip(OUTCOMES, map(int, row.groups()[1:]), strict=True)))
    return found


def _outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "broken"
    return "not made" if case.find("skipped") is not None else "survived"


def render(found: Counts) -> list[str]:
    lines = []
    for clause, attacks in found.items():
        rows = [[name, *(str(counts[outcome]) for outcome in OUTCOMES)] for name, counts in sorted(attacks.items())]
        lines += ["", f"## {clause}", *(table(["attack", *OUTCOMES], rows) if rows else ["", "No attack."])]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tests", nargs="*", default=["tests"], help="files and folders of tests")
    parser.add_argument("--long", nargs="*", default=LONG, help="files of tests/torture")
    parser.add_argument("--update", action="store_true", help="keep the rows of --out that are not made again")
    parser.add_argument("--clauses", type=Path, default=ROOT / "docs" / "reliability.md")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mecam-torture-") as scratch:
        known = clauses(options.clauses)
        found: Counts = {clause: {} for clause in known}
        if options.update:
            found = kept(options.out, known)
        # two calls: pytest would take the files of tests/torture, named by hand, for a part of the folder tests
        for number, chosen in enumerate(filter(None, (options.tests, options.long))):
            results = Path(scratch) / f"{number}.xml"
            pytest = [sys.executable, "-m", "pytest", "-q", "-m", "attack", "-p", "no:cacheprovider"]
            subprocess.call([*pytest, f"--junitxml={results}", *chosen], cwd=ROOT)
            if not results.exists():
                raise SystemExit("pytest ended without results")
            for clause, attacks in read(results, known).items():
                found[clause].update(attacks)
    total = sum((counts for attacks in found.values() for counts in attacks.values()), Counter[str]())
    made = total["survived"] + total["broken"]
    summary = f"attacks {made} / survived {total['survived']} / broken {total['broken']}"
    facts = {"minutes": f"{(time.monotonic() - start) / 60:.0f}", "not made here": str(total["not made"])}
    publish([*heading("Torture", "cpu", facts), "", f"**{summary}**", *render(found)], options.out)
    return 1 if total["broken"] or not made else 0


if __name__ == "__main__":
    sys.exit(main())
