"""Damage files of runs and stores one at a time, and check that the answer is correct or an error that names the file.

Files are truncated, emptied, changed in single bits or ranges, swapped with another run's, or removed. The script
prints counts as Markdown; the exit code is 1 if any other answer occurred.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.reliability.damage import fuzz

from machine import heading, publish, table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="mecam-torture-") as scratch:
        found = fuzz(Path(scratch), options.mutations, options.seed)
    answers = ", ".join(f"{count} {answer}" for answer, count in sorted(found.answers.items()))
    facts = {"seed": str(options.seed), "mutations": str(found.mutations), "readings": answers}
    lines = [
        *heading("Damage", "cpu", facts),
        "",
        "An error names the file. A correct answer equals that of the undamaged folder; for a resumed run or store, "
        "all bytes are equal.",
        *table(["way", "mutations"], [[way, str(count)] for way, count in sorted(found.ways.items())]),
        *table(["file", "mutations"], [[file, str(count)] for file, count in sorted(found.files.items())]),
        *(f"- wrong: {word}" for word in found.wrong),
    ]
    publish(lines, options.out)
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
