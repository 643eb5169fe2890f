"""Run the test suite and the demo under other instruction sets and thread counts: `make portability`.

    python benchmarks/portability.py --out benchmarks/results/portability.md
    python benchmarks/portability.py --rows "ATen default" "4 threads" --no-demo

One row changes one thing: the vector instructions of torch's own kernels (ATEN_CPU_CAPABILITY), those of oneDNN
(ONEDNN_MAX_CPU_ISA), or the number of threads. The first row changes nothing, and it alone runs the browser, Ray,
documentation and packaging tests. A row that this machine cannot run, or that equals the first, is named below the
table. The demo of each row is compared with the 95 % intervals of the first one's. The exit code is 1 if a test failed
or an average left its interval.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from machine import heading, publish, table

ROOT = Path(__file__).parents[1]
ONCE = ("tests/docs", "tests/examples", "tests/packaging", "tests/report", "tests/benchmark/test_ray_engine.py")
CAPABILITIES = ("default", "avx2", "avx512")
ISAS = ("SSE41", "AVX2", "AVX512_CORE", "DEFAULT")
THREADS = (1, 2, 4)
FIRST = "nothing changed"
DEMO = ROOT / "recipes" / "demo.toml"


@dataclass(frozen=True)
class Tests:
    """What pytest counted."""

    passed: int
    skipped: int
    failed: tuple[str, ...]
    minutes: float


Averages = dict[str, tuple[float, float]]  # by optimizer: mean and half of the 95 % interval, percent


def main() -> int:
    options = parse()
    own = torch.backends.cpu.get_cpu_capability().lower()
    rows, left_out = settings(own)
    unknown = set(options.rows) - set(rows)
    if unknown:
        sys.exit(f"--rows {', '.join(unknown)}: not among {', '.join(rows)}")
    found: dict[str, Tests] = {}
    demos: dict[str, Averages] = {}
    for name, environment in rows.items():
        if options.rows and name not in (FIRST, *options.rows):
            continue
        if options.tests:
            found[name] = run_tests(environment, everything=name == FIRST, workers=options.workers)
            print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
        if options.demo:
            demos[name] = run_demo(environment, workers=options.workers)
            print(f"{name}: {demos[name]}", file=sys.stderr, flush=True)
    outside = {name: departures(demo, demos[FIRST]) for name, demo in demos.items()}
    publish(page(found, demos, outside, rows, left_out, own), options.out)
    return int(any(one.failed for one in found.values()) or any(outside.values()))


def settings(own: str) -> tuple[dict[str, dict[str, str]], list[str]]:
    """The rows, each with what it sets in the environment; and what is left out, with the reason."""
    rows: dict[str, dict[str, str]] = {FIRST: {}}
    left_out = []
    for capability in CAPABILITIES:
        if CAPABILITIES.index(capability) < CAPABILITIES.index(own):
            rows[f"ATen {capability}"] = {"ATEN_CPU_CAPABILITY": capability}
        else:
            same = capability == own
            left_out.append(f"ATen {capability}: {'this is the first row' if same else 'not on this processor'}")
    for isa in ISAS:
        if isa == "DEFAULT":
            left_out.append("oneDNN DEFAULT: this is the first row")
        elif isa.startswith("AVX512") and own != "avx512":
            left_out.append(f"oneDNN {isa}: not on this processor")
        else:
            rows[f"oneDNN {isa}"] = {"ONEDNN_MAX_CPU_ISA": isa}
    for threads in THREADS:
        if threads == 1:
            left_out.append("1 thread: this is the first row")
        else:
            # threads that wait without spinning, so that tests side by side do not starve each other
            rows[f"{threads} threads"] = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    return rows, left_out


def run_tests(environment: dict[str, str], *, everything: bool, workers: int) -> Tests:
    left_out = [] if everything else [word for path in ONCE for word in ("--ignore", path)]
    words = ["-m", "pytest", "-n", str(workers), "--dist", "loadfile", "-p", "no:cacheprovider", *left_out]
    start = time.perf_counter()
    done = python(words, environment)
    text = done.stdout
    count = {word: int(number) for number, word in re.findall(r"(\d+) (passed|skipped|failed|errors?)", text[-300:])}
    failed = tuple(re.findall(r"^(?:FAILED|ERROR) (\S+)", text, flags=re.MULTILINE))
    if done.returncode and not failed:
        failed = (f"pytest ended with {done.returncode}: {(text + done.stderr)[-300:]!r}",)
    return Tests(count.get("passed", 0), count.get("skipped", 0), failed, (time.perf_counter() - start) / 60)


def run_demo(environment: dict[str, str], *, workers: int) -> Averages:
    """The demo's averages in this environment."""
    with tempfile.TemporaryDirectory() as folder:
        for words in (
            ["bench", str(DEMO), "--workers", str(workers), "--out", folder],
            ["table", folder, "--spread", "interval", "--format", "json"],
        ):
            done = python(["-m", "mecam.cli", *words], environment)
            if done.returncode:
                sys.exit(f"the demo failed: {done.stderr[-2000:]}")
    records = [record for record in json.loads(done.stdout) if record["target"] == "average"]
    return {record["optimizer"]: (record["mean"], record["spread"]) for record in records}


def python(words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def departures(demo: Averages, first: Averages) -> list[str]:
    """The optimizers whose average is not in the interval that the first row prints."""
    return [name for name, (mean, half) in first.items() if abs(demo[name][0] - mean) > half]


def page(
    found: dict[str, Tests],
    demos: dict[str, Averages],
    outside: dict[str, list[str]],
    rows: dict[str, dict[str, str]],
    left_out: list[str],
    own: str,
) -> list[str]:
    facts = {"first row": f"ATen {own}, oneDNN's own choice, 1 thread", "left out": "; ".join(left_out)}
    lines = heading("The test suite and the demo under other instruction sets and thread counts", "cpu", facts)
    if found:
        header = ["setting", "environment", "passed", "skipped", "failed", "minutes"]
        body = [
            [name, _spelled(rows[name]), str(one.passed), str(one.skipped), str(len(one.failed)), f"{one.minutes:.1f}"]
            for name, one in found.items()
        ]
        lines += ["", "## Tests", *table(header, body)]
        failures = [f"- {name}: `{test}`" for name, one in found.items() for test in one.failed]
        lines += ["", *(failures or ["No test failed."])]
    if demos:
        header = ["setting", *demos[FIRST], "outside its interval"]
        body = [
            [name, *(f"{mean:.1f} ± {half:.1f}" for mean, half in demo.values()), ", ".join(outside[name]) or "none"]
            for name, demo in demos.items()
        ]
        lines += ["", "## Demo: average over targets, percent, with its 95 % interval over seeds", *table(header, body)]
    return lines


def _spelled(environment: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in environment.items()) or "–"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", nargs="+", default=[], metavar="NAME", help="Run these rows and the first only.")
    parser.add_argument("--workers", type=int, default=2, help="Tests, or runs of the demo, at a time.")
    parser.add_argument("--no-tests", dest="tests", action="store_false", help="Run the demo only.")
    parser.add_argument("--no-demo", dest="demo", action="store_false", help="Run the tests only.")
    parser.add_argument("--out", type=Path, help="Write the page to this file.")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
