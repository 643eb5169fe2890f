"""Run the test suite and the demo under other instruction sets and thread counts: `make portability`.

    python benchmarks/portability.py --out benchmarks/results/portability.md
    python benchmarks/portability.py --rows "ATen default" "4 threads" --parts tests

Each row changes one setting: the vector instructions of torch's own kernels (ATEN_CPU_CAPABILITY), those of oneDNN
(ONEDNN_MAX_CPU_ISA), or the number of threads. The first row changes nothing. Only it runs the tests in ONCE: browser,
Ray, documentation, packaging, files, kills and the command line. The page lists rows that this machine cannot run or
that equal the first. The demo of each row is compared with the 95 % intervals of the first row.

Results are written to a JSON file after each part of a row; --resume runs what is missing there. The exit code is 1 if
a test failed or an average is outside its interval.
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
from pathlib import Path
from typing import Any

import torch

from machine import commit, heading, publish, table

ROOT = Path(__file__).parents[1]
# tests that rounding cannot change: pages, packages, processes and their files
ONCE = (
    *("tests/benchmarks", "tests/docs", "tests/ecosystem", "tests/examples", "tests/integrations"),
    *("tests/packaging", "tests/reliability", "tests/report"),
    *("tests/runs", "tests/benchmark/test_local.py", "tests/benchmark/test_ray_engine.py", "tests/data/test_pack.py"),
    *("tests/storage", "tests/test_cli.py", "tests/test_portability.py", "tests/test_usage.py"),
)
CAPABILITIES = ("default", "avx2", "avx512")
ISAS = ("SSE41", "AVX2", "AVX512_CORE", "DEFAULT")
THREADS = (1, 2, 4)
FIRST = "nothing changed"
DEMO = ROOT / "recipes" / "demo.toml"
RECORDS = ROOT / "benchmarks" / "results" / "portability.json"

Part = dict[str, Any]  # result of the tests or of the demo in one row
Records = dict[str, dict[str, Part]]  # by row and part


def main() -> int:
    options = parse()
    own = torch.backends.cpu.get_cpu_capability().lower()
    rows, left_out = settings(own)
    unknown = set(options.rows) - set(rows)
    if unknown:
        sys.exit(f"--rows {', '.join(unknown)}: not among {', '.join(rows)}")
    records: Records = json.loads(options.records.read_text()) if options.resume else {}
    for name in options.rows or rows:
        for part in options.parts:
            if part in records.get(name, {}):
                continue
            start = time.perf_counter()
            if part == "tests":
                found = run_tests(rows[name], everything=name == FIRST, workers=options.workers)
            else:
                found = run_demo(rows[name], workers=options.workers)
            found |= {"minutes": round((time.perf_counter() - start) / 60, 1), "commit": commit()}
            records.setdefault(name, {})[part] = found
            options.records.write_text(json.dumps(records, indent=1) + "\n")
            print(f"{name}, {part}: {found}", file=sys.stderr, flush=True)
    publish(page(records, rows, left_out, own), options.out)
    failed = any(record["tests"]["failed"] for record in records.values() if "tests" in record)
    return int(failed or any(departures(records, name) for name in records))


def settings(own: str) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Return the rows with their environment variables, and the omitted rows with the reason."""
    rows: dict[str, dict[str, str]] = {FIRST: {}}
    left_out = []
    for capability in CAPABILITIES:
        if own in CAPABILITIES[CAPABILITIES.index(capability) + 1 :]:
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
            # threads wait without spinning, so that parallel tests do not starve each other
            rows[f"{threads} threads"] = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    return rows, left_out


def run_tests(environment: dict[str, str], *, everything: bool, workers: int) -> Part:
    """Return pytest's counts and the names of the failed tests."""
    left_out = [] if everything else [word for path in ONCE for word in ("--ignore", path)]
    words = ["-m", "pytest", "-n", str(workers), "--dist", "loadfile", "-p", "no:cacheprovider", *left_out]
    # torch.compile's cache does not distinguish instruction sets: kernels of another row would return NaN
    with tempfile.TemporaryDirectory() as cache:
        done = python(words, {**environment, "TORCHINDUCTOR_CACHE_DIR": cache})
    count = {word: int(number) for number, word in re.findall(r"(\d+) (passed|skipped)", done.stdout[-300:])}
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, flags=re.MULTILINE)
    if done.returncode and not failed:
        failed = [f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-300:]!r}"]
    return {"passed": count.get("passed", 0), "skipped": count.get("skipped", 0), "failed": failed}


def run_demo(environment: dict[str, str], *, workers: int) -> Part:
    """Return the averages in percent, each with half of its 95 % interval."""
    with tempfile.TemporaryDirectory() as folder:
        for words in (
            ["bench", str(DEMO), "--workers", str(workers), "--out", folder],
            ["table", folder, "--spread", "interval", "--format", "json"],
        ):
            done = python(["-m", "mecam.cli", *words], environment)
            if done.returncode:
                sys.exit(f"the demo failed: {done.stderr[-2000:]}")
    found = [record for record in json.loads(done.stdout) if record["target"] == "average"]
    return {"averages": {record["optimizer"]: [record["mean"], record["spread"]] for record in found}}


def python(words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def departures(records: Records, name: str) -> list[str]:
    """Return the optimizers whose average in this row is outside the interval of the first row."""
    first, here = (records.get(row, {}).get("demo", {}).get("averages", {}) for row in (FIRST, name))
    return [
        optimizer for optimizer in here if optimizer in first and _gap(here, first, optimizer) > first[optimizer][1]
    ]


def _gap(here: Part, first: Part, optimizer: str) -> float:
    return abs(float(here[optimizer][0]) - float(first[optimizer][0]))


def page(records: Records, rows: dict[str, dict[str, str]], left_out: list[str], own: str) -> list[str]:
    facts = {"first row": f"ATen {own}, oneDNN's own choice, 1 thread", "left out": "; ".join(left_out)}
    lines = heading("The test suite and the demo under other instruction sets and thread counts", "cpu", facts)
    tests = {name: records[name]["tests"] for name in rows if "tests" in records.get(name, {})}
    demos = {name: records[name]["demo"] for name in rows if "demo" in records.get(name, {})}
    if tests:
        header = ["setting", "environment", "passed", "skipped", "failed", "minutes", "commit"]
        body = [
            [name, _spelled(rows[name]), *map(str, (one["passed"], one["skipped"], len(one["failed"]))), *_when(one)]
            for name, one in tests.items()
        ]
        lines += ["", "## Tests", *table(header, body)]
        failures = [f"- {name}: `{test}`" for name, one in tests.items() for test in one["failed"]]
        lines += ["", *(failures or ["No test failed."])]
    if demos:
        header = [
            "setting",
            *next(iter(demos.values()))["averages"],
            "outside the first row's interval",
            "minutes",
            "commit",
        ]
        body = [
            [name, *_averages(one), ", ".join(departures(records, name)) or "none", *_when(one)]
            for name, one in demos.items()
        ]
        lines += ["", "## Demo: average over targets, percent, with its 95 % interval over seeds", *table(header, body)]
    return lines


def _averages(demo: Part) -> list[str]:
    return [f"{mean:.1f} ± {half:.1f}" for mean, half in demo["averages"].values()]


def _when(part: Part) -> list[str]:
    return [str(part["minutes"]), part["commit"]]


def _spelled(environment: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in environment.items()) or "–"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", nargs="+", default=[], metavar="NAME", help="Run these rows only.")
    parser.add_argument("--parts", nargs="+", choices=("tests", "demo"), default=("tests", "demo"))
    parser.add_argument("--workers", type=int, default=2, help="Parallel test processes or demo runs.")
    parser.add_argument("--resume", action="store_true", help="Keep the results in --records.")
    parser.add_argument("--records", type=Path, default=RECORDS, help="JSON file with the results.")
    parser.add_argument("--out", type=Path, help="Write the page to this file.")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
