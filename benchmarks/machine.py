"""Describe where and how a measurement was taken, as Markdown, for the head of every results file."""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch


def heading(title: str, device: str, facts: dict[str, str]) -> list[str]:
    """Return title, command, machine, versions and commit, then the benchmark's own facts."""
    command = f"python {os.path.relpath(sys.argv[0])} {shlex.join(sys.argv[1:])}"
    everything = {
        "machine": describe(device),
        "versions": versions(),
        "commit": commit(),
        **facts,
    }
    return [f"# {title}", "", f"    {command.strip()}", "", *(f"- {name}: {fact}" for name, fact in everything.items())]


def parse(description: str | None, **defaults: Any) -> argparse.Namespace:
    """Parse the command line: an option for each default, and --out.

    The default False makes a switch. A list takes several values; of strings, only those in it.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        option = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(option, action="store_true")
        elif isinstance(default, list):
            kind = type(default[0])
            choices = default if kind is str else None
            parser.add_argument(option, nargs="*", type=kind, choices=choices, default=default)
        else:
            parser.add_argument(option, type=type(default), default=default)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def subset(known: list[str]) -> Callable[[str], list[str]]:
    """Return the type of an option that takes some of these names, with commas between them."""

    def names(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := set(chosen) - set(known):
            raise argparse.ArgumentTypeError(f"there is no {', '.join(sorted(unknown))}; known are {', '.join(known)}")
        return chosen

    return names


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    return ["", _row(header), _row(["---", *["---:"] * (len(header) - 1)]), *map(_row, rows)]


def publish(lines: list[str], out: Path | None) -> None:
    """Print the lines, and write them to a file if one is given."""
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if out is not None:
        out.write_text(text, encoding="utf-8")


class Others:
    """The share of the processors that other programs have used since construction; 0 if unknown."""

    def __init__(self) -> None:
        self.start, self.used = time.perf_counter(), _used_by_others()

    def share(self) -> float:
        return (_used_by_others() - self.used) / (time.perf_counter() - self.start) / (os.cpu_count() or 1)


def _used_by_others() -> float:
    """Return seconds of processor time, including stolen time."""
    if not Path("/proc/stat").exists():
        return 0.0
    user, nice, system, _, _, *interrupts_and_steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    busy = (user + nice + system + sum(interrupts_and_steal)) / os.sysconf("SC_CLK_TCK")
    return busy - sum(os.times()[:2])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def describe(device: str) -> str:
    """Return the processor, and the accelerator if one is used."""
    processor = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        named = (line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
        processor = next(named, processor).rpartition(":")[2].strip()
    cpu = f"{processor}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    return cpu if device == "cpu" else f"{torch.cuda.get_device_name()} beside {cpu}"


def versions() -> str:
    """Return the versions that a measurement depends on."""
    packages = [f"torch {torch.__version__}", f"pytorch_optimizer {_version('pytorch_optimizer')}"]
    return ", ".join([*packages, f"Python {platform.python_version()}"])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def commit() -> str:
    """Return the commit; outside of a repository, $MECAM_COMMIT."""
    if named := os.environ.get("MECAM_COMMIT"):
        return named
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "none"
