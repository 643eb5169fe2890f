"""The benchmark: an experiment, its runs on an engine, the tables. Tables need no torch: nothing is imported before."""

from typing import Any

_FUNCTIONS = ("Outcome", "bench", "missing", "runs_of")


def __getattr__(name: str) -> Any:
    if name not in _FUNCTIONS:
        raise AttributeError(f"module 'mecam.benchmark' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("mecam.benchmark.bench"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_FUNCTIONS])
