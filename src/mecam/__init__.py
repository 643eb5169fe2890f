"""Train image classifiers that hold up in domains they have never seen.

`mecam.train(recipe)` is what `mecam train` does, `mecam.bench(...)` what `mecam bench` does. Nothing is imported before
it is asked for, so that `import mecam` and `mecam --help` are quick.
"""

from typing import Any

__version__ = "0.1.0"
_FUNCTIONS = {
    "train": "mecam.training",
    "bench": "mecam.benchmark.command",
    "Recipe": "mecam.recipe",
    "repair_torchvision": "mecam._torchvision",
}


def __getattr__(name: str) -> Any:
    if name not in _FUNCTIONS:
        raise AttributeError(f"module 'mecam' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_FUNCTIONS[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_FUNCTIONS])
