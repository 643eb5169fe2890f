"""Settings for the whole suite: one thread per process unless OMP_NUM_THREADS asks for more, Ctrl-C as on a terminal,
and the repair of torchvision that users get too."""

import functools
import gc
import os
import secrets
import signal
import sys
from collections.abc import Iterator
from importlib.metadata import version

import pytest
import torch

import mecam

mecam.repair_torchvision()  # what timm_models.py does for users; tests also import timm and torchvision themselves
torch.set_num_threads(int(os.environ.setdefault("OMP_NUM_THREADS", "1")))
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with Ctrl-C ignored
# Ray reads these once, when it is first imported, whichever test does that; without a token of ours it would put one
# into the home folder, for good
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put marks into JUnit's file, from which benchmarks/works_with.py and benchmarks/torture.py write their pages."""
    of = functools.cache(version)  # reads a file
    for item in items:
        for mark in item.iter_markers("attack"):
            item.user_properties.append(("attack", mark.args[0]))
        for mark in item.iter_markers("works_with"):
            framework, tried = mark.args
            versions = ", ".join(f"{name} {of(name)}" for name in mark.kwargs["packages"])
            item.user_properties += [("framework", framework), ("tried", tried), ("versions", versions)]


def pytest_collection_finish() -> None:
    """Build the command line once, and exclude imports and collected tests from garbage collections."""
    if typer := sys.modules.get("typer.testing"):
        typer._get_command = functools.cache(typer._get_command)  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()


@pytest.fixture
def own_parts() -> Iterator[None]:
    """Forget the parts that a test registers."""
    from mecam.benchmark.settings import REGISTRIES, registry

    kept = [(registry(part), dict(registry(part))) for part in REGISTRIES]
    yield
    for parts, own in kept:
        parts.clear()
        parts |= own


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    """What a test compiles or exports is its own: optimizers without model= ask torch whether anything was compiled."""
    yield
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        dynamo.counters.clear()
