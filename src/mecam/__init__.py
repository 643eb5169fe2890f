"""Train image classifiers that hold up in domains they have never seen.

`mecam.fit`, `mecam.train`, `mecam.evaluate` and `mecam.bench` are the commands of these names as functions, and
`mecam.load_model(...)` has predictions. Nothing is imported before it is asked for, so that `import mecam` and
`mecam --help` are quick.
"""

from typing import Any

__version__ = "0.2.0"
_FUNCTIONS = {
    "fit": "mecam.fitting",
    "train": "mecam.training",
    "evaluate": "mecam.serving",
    "bench": "mecam.benchmark.experiment",
    "load_model": "mecam.serving",
    "Recipe": "mecam.recipe",
    "repair_torchvision": "mecam._torchvision",
}


def __getattr__(name: str) -> Any:
    if name not in _FUNCTIONS:
        raise AttributeError(f"module 'mecam' has no attribute {name!r}")
    from importlib import import_module

    try:
        module = import_module(_FUNCTIONS[name])
    except ModuleNotFoundError as error:
        raise ImportError(f"mecam.{name} needs more packages ({error}): pip install 'mecam[cli]'") from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_FUNCTIONS])
