"""Test kills, failing disks and concurrent processes at length: `make torture`.

Real `mecam train` and `mecam bench` processes are killed at random moments and at chosen system calls, and meet failing
file systems. Eight processes at once compete for the same runs and the same store. The script prints counts as
Markdown; the exit code is 1 if anything was lost, duplicated or wrong. For damaged files see torture_damage.py.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.reliability.histories import WRITING, Blow, Tally, suffer, undisturbed

from machine import heading, publish, table

SET = ("--set", "batch=4", "--set", "image_size=16", "--set", "evaluate_every=5")
TRAIN = ("train", "--target", "art", "--optimizer", "mecam", "--averaging", "swad", "--quiet", "--steps", "60", *SET)
BENCH = (
    *("bench", "--target", "art,photo", "--optimizer", "adam,mecam", "--seeds", "0", "--workers", "2"),
    *("--steps", "30", *SET),
)
BLOWS = 5  # per history
# where faults are injected: a part of the path, and the number of calls to choose from
PLACES = {
    "checkpoint/": 60,
    "checkpoint/manifest.json": 8,  # its rename makes a checkpoint valid
    "/.mecam-": 12,  # files before they are renamed
    "records.jsonl": 20,
    "model.safetensors": 1,
    "done.json": 1,
}


def blow(draw: random.Random) -> Blow:
    """Draw a signal at a random moment, or with equal probability a kill or an error during a write."""
    if draw.random() < 0.5:
        how = draw.choice(("SIGKILL", "SIGKILL", "SIGTERM", "SIGINT"))
        return Blow(how, draw.random(), alone=how == "SIGKILL" and draw.random() < 0.3)
    place = draw.choice(list(PLACES))
    how = draw.choice(("SIGKILL", "SIGKILL", "ENOSPC", "EIO", "EROFS"))
    calls = {"ENOSPC": WRITING, "EIO": ("write", "fsync", "replace")}.get(how)
    return Blow(how, match=place, calls=calls, at=draw.randint(1, PLACES[place]))


def kills(root: Path, words: tuple[str, ...], blows: int, draw: random.Random) -> Tally:
    """Run histories until the given number of faults has occurred."""
    whole, tally = undisturbed(words, root / "whole"), Tally()
    while sum(tally.landed.values()) < blows:
        number = tally.histories
        tally.add(suffer(words, root / str(number), [blow(draw) for _ in range(BLOWS)], whole))
        landed = sum(tally.landed.values())
        print(
            f"{words[0]}: {landed} blows; lost {tally.lost}, doubled {tally.doubled}, wrong {tally.wrong}", flush=True
        )
    return tally


def crowds(root: Path, rounds: int) -> list[dict[str, dict[str, int]]]:
    """Run eight processes at once and kill two of them, repeatedly."""
    found = []
    for number in range(rounds):
        command = [sys.executable, "-m", "tests.reliability.several", str(root / str(number)), "2"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(
            command, cwd=Path(__file__).parents[1], env=environment, capture_output=True, text=True, check=False
        )
        if ended.returncode:
            raise RuntimeError(ended.stderr)
        found.append(json.loads(ended.stdout))
        print(f"crowd: {found[-1]}", flush=True)
    return found


def rows_of_kills(name: str, tally: Tally) -> list[list[str]]:
    kinds = sorted({*tally.landed, *tally.missed})
    return [[f"{name}: {kind}", str(tally.landed[kind]), str(tally.missed[kind])] for kind in kinds]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blows", type=int, default=60, help="faults in mecam train; a third as many in mecam bench")
    parser.add_argument("--crowds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    draw, start = random.Random(options.seed), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mecam-torture-") as scratch:
        root = Path(scratch)
        os.environ["MECAM_CACHE"] = str(root / "cache")
        tallies = {}
        for words, blows in ((TRAIN, options.blows), (BENCH, -(-options.blows // 3))):
            (root / words[0]).mkdir()
            tallies[f"mecam {words[0]}"] = kills(root / words[0], words, blows, draw)
        crowded = crowds(root / "crowds", options.crowds)
    bad = [word for tally in tallies.values() for word in (*tally.lost, *tally.doubled, *tally.wrong)]
    bad += [str(found) for crowd in crowded for found in crowd.values() if any(found[k] for k in FAULTS)]
    total = Tally()
    for tally in tallies.values():
        total.add(tally)
    lines = heading("Torture", "cpu", {"seed": str(options.seed), "minutes": f"{(time.monotonic() - start) / 60:.0f}"})
    lines += [
        "",
        f"Kills and failures: {sum(total.landed.values())} faults occurred in {total.histories} histories of "
        f"{total.starts} starts. After each history, weights, records, predictions, done.json and the table were "
        f"compared with the undisturbed run's, byte by byte: {len(total.lost)} lost, {len(total.doubled)} doubled, "
        f"{len(total.wrong)} otherwise wrong.",
        *table(["fault", "occurred", "missed"], [row for n, t in tallies.items() for row in rows_of_kills(n, t)]),
        "",
        f"Crowds: {len(crowded)} times eight processes on one folder of three runs, and eight on one store, with "
        "`flock` that does nothing and two processes killed at work.",
        *table(["", *SHOWN], [[k, *(str(sum(c[k][n] for c in crowded)) for n in SHOWN)] for k in ("train", "packing")]),
    ]
    lines += ["", *(f"- wrong: {word}" for word in bad)] if bad else []
    publish(lines, options.out)
    return 1 if bad else 0


FAULTS = ("failed", "overlaps", "doubled", "differing")
SHOWN = ("killed", "ended", *FAULTS)

if __name__ == "__main__":
    sys.exit(main())
