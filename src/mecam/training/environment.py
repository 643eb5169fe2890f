"""Describe the software and hardware of a run, for run.json, sessions.jsonl and `mecam rerun`.

`mecam.runs.sessions.CIRCUMSTANCES` lists the entries that may change the last bits of a result.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import torch

import mecam

PACKAGES = ("torch", "numpy", "pillow", "safetensors", "timm", "pytorch_optimizer")
ROOT = Path(mecam.__file__).parent
ONEDNN_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")  # the second is the older name
MKL_SETTINGS = ("MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")


def describe() -> dict[str, Any]:
    """Return versions, the commit and a digest of the code, and the machine."""
    return {
        "mecam": mecam.__version__,
        "commit": commit(),
        "source": source(),
        **{package: _version(package) for package in PACKAGES},
        "torch": torch.__version__,  # with the build
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "instruction_set": instruction_set(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def instruction_set() -> str:
    """Return the CPU capability of torch and limits on its libraries, such as "AVX2, oneDNN at most SSE41"."""
    limit = next((os.environ[name].upper() for name in ONEDNN_LIMITS if os.environ.get(name)), "DEFAULT")
    onednn = [] if limit in ("DEFAULT", "ALL") else [f"oneDNN at most {limit}"]
    mkl = [f"{name}={os.environ[name]}" for name in MKL_SETTINGS if os.environ.get(name)]
    return ", ".join((torch.backends.cpu.get_cpu_capability(), *onednn, *mkl))


def commit(package: Path = ROOT) -> str | None:
    """Return the commit that is checked out or that pip installed; None if unknown."""
    git = package.parents[1] / ".git"
    try:
        if git.is_file():  # a worktree's, with the path of the rest
            git = git.parent / git.read_text().removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text().strip()
        name = head.removeprefix("ref:").strip()
        return head if name == head else _reference(git, name)
    except OSError:
        return _installed_commit()


@cache
def source(package: Path = ROOT) -> str:
    """Return a digest of the package's code, which also shows uncommitted changes."""
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(package).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _reference(git: Path, name: str) -> str | None:
    common = git / "commondir"
    places = [git, git / common.read_text().strip()] if common.exists() else [git]
    for place in places:
        if (place / name).exists():
            return (place / name).read_text().strip()
        if (place / "packed-refs").exists():
            for line in (place / "packed-refs").read_text().splitlines():
                if line.endswith(f" {name}"):
                    return line.split()[0]
    return None  # nothing is committed yet


def _installed_commit() -> str | None:
    try:
        origin = json.loads(distribution("mecam").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return None
    commit_id = origin.get("vcs_info", {}).get("commit_id")
    return None if commit_id is None else str(commit_id)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
