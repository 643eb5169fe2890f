"""Compare the source validation of every method with that of a linear classifier on pixels.

    mecam bench --method all --target sketch --seeds 0,1,2 --steps 200 --workers 2 --out methods
    python benchmarks/methods_learn.py methods --pixels 33.3

The script reads finished runs; `--pixels` is the number that benchmarks/pixels.py prints for the same target.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from machine import heading, publish, table
from mecam.benchmark.results import read
from mecam.benchmark.tables import SPREADS


def main() -> None:
    options = parse()
    found, problems = read(options.runs)
    by_method: dict[str, list[tuple[float, float]]] = {}
    for result in found:
        if result.accuracy is not None and result.validation is not None:
            by_method.setdefault(result.recipe.method, []).append((result.validation, result.accuracy))
    rows = []
    for method, values in by_method.items():
        validation, unseen = zip(*values, strict=True)
        learns = "yes" if min(validation) > options.pixels else "NO"
        rows.append([method, words(validation), words(unseen), str(len(values)), learns])
    rows.sort(key=lambda row: -float(row[1].split()[0]))
    recipes = {(r.recipe.data, r.target, r.recipe.steps, r.recipe.backbone) for r in found}
    facts = {
        "runs": "; ".join(f"{data} without {target}, {steps} steps, {net}" for data, target, steps, net in recipes),
        "least": f"a linear classifier on pixels has {options.pixels} % source validation (benchmarks/pixels.py)",
        "numbers": "percent, mean ± standard error over seeds (ddof 0); learns: the worst seed is above the least",
    }
    header = ["method", "source validation", "unseen domain", "runs", "learns"]
    lines = [*heading("Every method on the embedded set", "cpu", facts), *table(header, rows)]
    publish([*lines, *(f"\n{problem}" for problem in problems)], options.out)


def words(values: tuple[float, ...]) -> str:
    return f"{statistics.fmean(values):.1f} ± {SPREADS['stderr'](values):.1f}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--pixels", type=float, required=True)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
